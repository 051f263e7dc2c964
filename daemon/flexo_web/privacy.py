"""Hides from a viewer what the cluster hides from that user: flexod tells flexo-web everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.explanations import Explained
from flexo_web.tokens import Viewer

NOT_A_READER: Final = (
    "the cluster hides jobs, also from the account of flexo-web: add it to [service] readers in flexo.toml"
)


def sees_all(picture: Picture | None, viewer: Viewer) -> bool:
    """Whether nothing is hidden from `viewer`. Without a picture nobody knows, so everything is."""
    if picture is None:
        return False
    privacy = picture.status.privacy
    return not (privacy.jobs or privacy.nodes) or viewer.uid == 0 or viewer.name in privacy.readers


def seen_by(picture: Picture, viewer: Viewer) -> Picture:
    """The picture without what is hidden from `viewer`."""
    if sees_all(picture, viewer):
        return picture
    privacy = picture.status.privacy
    jobs, nodes, loans = picture.jobs, picture.nodes, picture.loans
    if privacy.jobs:
        jobs = admin_pb2.ListJobsReply(
            jobs=[job for job in jobs.jobs if job.user == viewer.name],
            waiting=[job for job in jobs.waiting if job.user == viewer.name],
        )
        own = {job.job_id for job in jobs.jobs} | {job.job_id for job in jobs.waiting}
        nodes = admin_pb2.ListNodesReply(
            nodes=nodes.nodes, order=[each for each in nodes.order if each in own]
        )
    if privacy.nodes:
        nodes = admin_pb2.ListNodesReply(order=nodes.order)
        loans = admin_pb2.ListLoansReply()
    return replace(picture, status=_status(picture.status), jobs=jobs, nodes=nodes, loans=loans)


def explained_to(explained: Explained, job_id: int, picture: Picture | None, viewer: Viewer) -> Explained:
    """flexod's answer on a job. A job that `viewer` may not see is like one that is not there."""
    if explained.reply is None or sees_all(picture, viewer):
        return explained
    is_hidden = picture is None or picture.status.privacy.jobs
    if not is_hidden or explained.reply.user == viewer.name:
        return explained
    return Explained(None, f"job {job_id} is not in the queue")


def _status(status: admin_pb2.GetStatusReply) -> admin_pb2.GetStatusReply:
    """The status without jobs. It says so if flexo-web itself is not told of any."""
    cut = admin_pb2.GetStatusReply()
    cut.CopyFrom(status)
    del cut.slow_gpus[:]
    cut.ClearField("pool")
    if status.privacy.restricted:
        cut.trouble = "; ".join(filter(None, (status.trouble, NOT_A_READER)))
    return cut
