"""A grant as flexod issued it, and the check that a queued job is the satellite that the grant allows. Pure.

Users write the comments and names of their own jobs, so a tag only names a grant. The cluster's record of the
job decides: owner, node, partition, size and base must be those that flexod granted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flexo.model.elastic import Grant
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob
from flexo.model.sharing import SPARE, shared_gpus_in
from flexo_protos.resources import Amount, Devices, Resources, rounded_up

UNKNOWN_OWNER: Final = Principal("")
"""The owner of a grant of an older release, which did not record owners."""
LONGEST_LIMIT_S: Final = 3600.0
"""The longest time limit that flexod sets (control/time_limits.py), where `time_limit_s` is not longer."""
_LIMIT_SLACK_S: Final = 120.0
"""The tolerance for time limits: clusters round them up to minutes, some twice."""


@dataclass(frozen=True, slots=True)
class IssuedGrant:
    """One grant, with the resources that its satellite may hold."""

    job: JobKey
    grant_id: str
    """The identifier; "": an older release issued the grant and did not record it."""
    owner: Principal
    node: str
    workers: int
    partition: str
    """The partition of the satellite; "": not known."""
    resources: Resources | None
    """The resources of the satellite, shared GPUs among its devices.

    Memory is 0 if the base job did not ask for any. None: an older release did not record the resources.
    """
    issued_at: float
    satellite_job_id: int = 0
    """The one queued job that counts for this grant; 0: none was seen yet."""
    ended_at: float | None = None
    """The time when flexod withdrew the grant, or its leader gave it back; None: the grant stands."""

    @classmethod
    def of(cls, grant: Grant, owner: Principal, shape: Resources) -> IssuedGrant:
        """`grant`, issued now to a job of `owner` whose workers have this shape."""
        workers = grant.workers
        return cls(
            job=grant.job,
            grant_id=grant.grant_id,
            owner=owner,
            node=grant.node,
            workers=workers,
            partition=grant.partition,
            resources=grant.resources(shape),
            issued_at=grant.since_at,
        )

    @property
    def shared_gpus(self) -> tuple[Devices, ...]:
        """The GPUs of its workers that other jobs hold."""
        return shared_gpus_in(self.resources.devices) if self.resources else ()

    def seen_as(self, job: QueuedJob) -> IssuedGrant:
        """The grant with `job` as its satellite. A grant of an older release also takes its owner and
        resources from `job`."""
        seen = replace(self, satellite_job_id=job.job_id)
        return seen if self.resources is not None else replace(seen, owner=job.owner, resources=job.resources)


def _workers_within(base: QueuedJob) -> int:
    """The number of workers that the CPUs and the memory of the base are for."""
    return base.elastic.requested_workers if base.elastic else 1


def _gpus_of_worker(base: QueuedJob) -> Amount:
    if base.elastic is not None and base.elastic.opportunistic:
        return 1
    return base.resources.gpus_of_each(_workers_within(base))


def shape_within(base: QueuedJob, said: Resources | None) -> Resources:
    """The resources of one worker. The record of its base bounds what its leader says.

    Fractions of a GPU are those of the record: policies plan in parts of all fractions there are, so that one
    that a leader has made up would cost them any time and memory.
    """
    held, workers = base.resources, _workers_within(base)
    gpus, most = _gpus_of_worker(base), held.share(workers)
    if said is None:
        return Resources(gpus, max(1, held.cpus // workers), gpu_type=held.gpu_type)
    return Resources(
        gpus=min(said.gpus, gpus) if isinstance(said.gpus, int) else gpus,
        cpus=max(1, min(said.cpus, most.cpus)),
        memory_mib=min(said.memory_mib, most.memory_mib) if held.memory_mib else said.memory_mib,
        gpu_type=said.gpu_type,
        devices=tuple(each for each in said.devices if most.holds(Resources(devices=(each,)))),
    )


def is_satellite(
    job: QueuedJob,
    issued: IssuedGrant,
    base: QueuedJob,
    threads_per_core: int,
    time_limit_s: float,
    now: float,
) -> bool:
    """Whether the cluster's record of `job` matches what `issued` allows its base job, and holds no more."""
    return (
        job.owner == base.owner
        and issued.owner in (base.owner, UNKNOWN_OWNER)
        and base.elastic is not None
        and _is_in_its_place(job, issued)
        and _has_its_size(job, issued, base, threads_per_core)
        and _ends_in_time(job, max(time_limit_s, LONGEST_LIMIT_S) + _LIMIT_SLACK_S, now)
    )


def is_left_over(job: QueuedJob, issued: IssuedGrant) -> bool:
    """Whether `job` is what `issued` allowed a base job that the cluster does not have any more."""
    return issued.owner in (job.owner, UNKNOWN_OWNER) and _is_in_its_place(job, issued)


def _is_in_its_place(job: QueuedJob, issued: IssuedGrant) -> bool:
    """Whether `job` is one job, was never requeued, and is on one node: the granted one.

    A record that stands for several jobs would let all of them start by one grant.
    """
    where = job.nodes or tuple(job.required_nodes)
    return (
        job.is_whole
        and where == (issued.node,)
        and job.num_nodes == 1
        and len(job.partitions) == 1
        and issued.partition in ("", job.partitions[0])
        and job.restart_count == 0
    )


def _has_its_size(job: QueuedJob, issued: IssuedGrant, base: QueuedJob, threads_per_core: int) -> bool:
    """Whether `job` holds the granted GPUs, and no more of the rest than was granted or than its share of the
    base job's.

    Clusters round CPUs up to cores. Rules of the site may raise CPUs and memory, but for the base job, too.
    """
    granted, held = issued.resources or Resources(), job.resources
    if issued.resources is not None and held.gpus != granted.gpus:
        return False
    if held.gpus > _gpus_of_worker(base) * issued.workers:
        return False
    if {each for each in held.devices if each.name == SPARE} != set(issued.shared_gpus):
        return False
    its_share = base.resources.share(_workers_within(base)) * issued.workers
    devices = Resources(devices=held.devices)
    if not (granted.holds(devices) or its_share.holds(devices)):
        return False
    cpus = max(granted.cpus, its_share.cpus)
    if held.cpus > rounded_up(cpus, threads_per_core) * threads_per_core:
        return False
    if not base.resources.memory_mib:
        return True
    memory_mib = max(granted.memory_mib, its_share.memory_mib)
    if not granted.memory_mib:
        # a cluster's default may give a job the same memory on each node, whatever it holds there
        memory_mib = max(memory_mib, base.resources.share(base.num_nodes).memory_mib)
    return held.memory_mib <= memory_mib


def _ends_in_time(job: QueuedJob, limit_s: float, now: float) -> bool:
    if job.time_limit_s is None:
        return False
    if job.state is JobState.PENDING or job.started_at is None:
        return job.time_limit_s <= limit_s
    if now < job.started_at:
        return True  # the clock was set back
    return job.started_at + job.time_limit_s - now <= limit_s
