"""The page of what jobs share: GPUs that two jobs use, and Aggregators; and what that costs each job."""

from __future__ import annotations

from dataclasses import dataclass

from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.privacy import Privacy


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job that shares something."""

    job_id: int
    """0: the viewer may not see the job."""
    user: str
    account: str


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU that two jobs may use. Shares are from 0 to 1."""

    node: str
    gpu: int
    holder: Sharer
    guest: Sharer | None
    """None: no job uses it besides its holder."""
    busy: float
    """Share of the time in which the holder keeps it busy."""
    guest_works: float
    cost: float
    """The part by which sharing slows the holder's steps down."""


@dataclass(frozen=True, slots=True)
class Aggregated:
    """A job that has asked for pool Aggregators."""

    job: Sharer
    state: str
    aggregators: tuple[str, ...]
    alone_s: float
    """An iteration before the job shared them; 0: not measured."""
    now_s: float
    loss: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """The whole page."""

    partition: str | None
    """The partition of satellites on shared GPUs; "": none are shared; None: flexod is too old to say."""
    gpus: tuple[SharedGpu, ...]
    in_use: int
    """GPUs that two jobs use at present."""
    costliest: float
    """The highest cost of a holder."""
    has_pool: bool
    aggregators: int
    aggregated: tuple[Aggregated, ...]


def sharing_page(whole: Picture, privacy: Privacy) -> Sharing:
    """The page. `privacy`: what the viewer may see of `whole`."""
    jobs = {job.job_id: job for job in whole.jobs.jobs}
    own = [job for job in jobs.values() if privacy.owns(job.user)]
    pairs = () if privacy.hides_nodes else [view for job in own for view in job.shared_gpus]

    def sharer(job_id: int) -> Sharer:
        job = jobs.get(job_id)
        if not privacy.of_job(job_id):
            return Sharer(0, "", "")
        return Sharer(job_id, job.user if job else "", job.account if job else "")

    views = {(view.node, view.gpu): view for view in pairs}
    gpus = tuple(
        SharedGpu(
            node=view.node,
            gpu=view.gpu,
            holder=sharer(view.holder),
            guest=sharer(view.guest) if view.guest else None,
            busy=view.utilization,
            guest_works=view.opportunistic_share,
            cost=view.slowdown,
        )
        for _, view in sorted(views.items())
    )
    status, pool = whole.status, whole.status.pool
    return Sharing(
        partition=status.sharing_partition if status.HasField("sharing_partition") else None,
        gpus=gpus,
        in_use=sum(gpu.guest is not None for gpu in gpus),
        costliest=max((gpu.cost for gpu in gpus), default=0.0),
        has_pool=status.HasField("pool"),
        aggregators=len(pool.aggregators),
        aggregated=tuple(_aggregated(job, sharer(job.job_id)) for job in own if job.aggregation.wants_pool),
    )


def _aggregated(job: admin_pb2.ElasticJob, sharer: Sharer) -> Aggregated:
    use = job.aggregation
    return Aggregated(
        job=sharer,
        state=use.state,
        aggregators=tuple(each.name for each in use.aggregators),
        alone_s=use.alone_s,
        now_s=use.now_s,
        loss=use.loss,
    )
