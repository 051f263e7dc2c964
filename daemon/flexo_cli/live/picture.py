"""One picture of flexod: all that `flexo top` shows at an instant."""

from __future__ import annotations

from dataclasses import dataclass

from flexo_cli.as_json import job_as_json, node_as_json, status_as_json, waiting_as_json
from flexo_cli.connection import Daemon
from flexo_cli.loans import loans_as_json
from flexo_cli.output import Json
from flexo_protos.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class Picture:
    """flexod's replies. They are requested one after the other, and may be a cycle apart."""

    at: float
    """Time of the first request."""
    status: admin_pb2.GetStatusReply
    jobs: admin_pb2.ListJobsReply
    nodes: admin_pb2.ListNodesReply
    loans: admin_pb2.ListLoansReply


def take(flexod: Daemon, now: float) -> Picture:
    """Request a picture as of `now`. Raises Unreachable and Refusal."""
    return Picture(now, flexod.status(), flexod.jobs(), flexod.nodes(), flexod.loans(0))


def as_json(picture: Picture) -> dict[str, Json]:
    """The whole picture as JSON: as in `flexo status`, `jobs` and `loans`, and the nodes."""
    return {
        "at": picture.at,
        "status": status_as_json(picture.status),
        "jobs": [job_as_json(job) for job in picture.jobs.jobs],
        "waiting": [waiting_as_json(job) for job in picture.jobs.waiting],
        "nodes": [node_as_json(node) for node in picture.nodes.nodes],
        "order": list(picture.nodes.order),
        "loans": loans_as_json(picture.loans),
    }
