"""The people's side of flexod: everybody on the cluster may read, few may scale a job.

Who called has been proven before (authentication.py); here it is decided what they may.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import TYPE_CHECKING, NoReturn

import grpc
import grpc.aio
import structlog

import flexo
from flexo.controller import BadScale, Controller, ControllerStatus, JobView, UnknownJob
from flexo.journal import Journal
from flexo.service.authentication import caller
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    from typing import Any

    _Context = grpc.aio.ServicerContext[Any, Any]

EVENTS = 200
"""How much of a job's history one answer holds."""

_log = structlog.get_logger("flexo.service")


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """See protos/flexo/v1/admin.proto."""

    def __init__(self, controller: Controller, journal: Journal, administrators: tuple[str, ...]) -> None:
        self._controller = controller
        self._journal = journal
        self._administrators = administrators

    async def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: _Context
    ) -> admin_pb2.GetStatusReply:
        """What the loop does and has seen last."""
        return _status(self._controller.status())

    async def ListJobs(  # noqa: N802
        self, request: admin_pb2.ListJobsRequest, context: _Context
    ) -> admin_pb2.ListJobsReply:
        """All elastic jobs whose base runs."""
        return admin_pb2.ListJobsReply(jobs=[_job(view) for view in self._controller.jobs()])

    async def ExplainJob(  # noqa: N802
        self, request: admin_pb2.ExplainJobRequest, context: _Context
    ) -> admin_pb2.ExplainJobReply:
        """Present reasons and past events; of a job that has ended, the events alone."""
        events = await asyncio.to_thread(self._journal.events, request.job_id, EVENTS)
        try:
            sentences = await asyncio.to_thread(self._controller.explain, request.job_id)
        except UnknownJob as error:
            if not events:
                await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            sentences = (str(error),)
        return admin_pb2.ExplainJobReply(
            sentences=sentences,
            events=[admin_pb2.Event(at=event.at, kind=event.kind, text=event.text) for event in events],
        )

    async def ScaleJob(  # noqa: N802
        self, request: admin_pb2.ScaleJobRequest, context: _Context
    ) -> admin_pb2.ScaleJobReply:
        """Cap a job, for its owner and administrators."""
        views = [view for view in self._controller.jobs() if view.job.key.job_id == request.job_id]
        if not views:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no running elastic job {request.job_id}"
            )
        await self._refuse_strangers(views[0], context)
        try:
            text = await asyncio.to_thread(self._controller.scale, views[0].job.key, request.workers or None)
        except UnknownJob as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except BadScale as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        _log.info("job scaled", job=str(views[0].job.key), workers=request.workers, uid=caller().uid)
        return admin_pb2.ScaleJobReply(text=text)

    async def _refuse_strangers(self, view: JobView, context: _Context) -> None:
        uid = caller().uid
        if uid in (view.user_id, 0, os.getuid()):
            return
        if await asyncio.to_thread(_account, uid) in self._administrators:
            return
        may = dict.fromkeys((view.job.user, "root", _account(os.getuid()), *self._administrators))
        text = f"uid {uid} may not scale job {view.job.key}: {', '.join(may)} may"
        _log.warning("scaling denied", job=str(view.job.key), uid=uid, peer=context.peer(), why=text)
        await _abort(context, grpc.StatusCode.PERMISSION_DENIED, text)


def _account(uid: int) -> str:
    """The account's name; its number, which no administrator is listed by, where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


async def _abort(context: _Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)


def _status(status: ControllerStatus) -> admin_pb2.GetStatusReply:
    return admin_pb2.GetStatusReply(
        flexod_version=flexo.__version__,
        slurm_version=status.slurm_version,
        cluster=status.cluster,
        started_at=status.started_at,
        policy=status.policy,
        dry_run=status.dry_run,
        interval_s=status.interval_s,
        last_cycle_at=status.last_cycle_at,
        read_cost_s=status.read_cost_s,
        trouble=status.trouble,
        nodes=status.nodes,
        gpus=status.gpus,
        gpus_idle=status.gpus_idle,
        gpus_in_satellites=status.gpus_in_satellites,
        elastic_jobs=status.elastic_jobs,
        leaders=status.leaders,
    )


def _job(view: JobView) -> admin_pb2.ElasticJob:
    job = view.job
    return admin_pb2.ElasticJob(
        job_id=job.key.job_id,
        restart_count=job.key.restart_count,
        user=job.user,
        min=job.workers.min,
        max=job.workers.max,
        workers=job.training_workers,
        granted=job.granted_workers,
        gpus_per_worker=job.shape.gpus,
        wanted=job.wanted or 0,
        attached=view.attached,
        scalable=job.scalable,
        batches_committed=view.batches_committed,
        base_nodes=job.base_nodes,
        grants=[
            admin_pb2.GrantView(
                grant_id=grant.grant_id,
                node=grant.node,
                workers=grant.workers,
                state=grant.state.value,
                slurm_job_id=grant.satellite_job_id,
                since_at=grant.since_at,
            )
            for grant in job.grants
        ],
    )
