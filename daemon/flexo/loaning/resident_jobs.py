"""The jobs that train on servers on loan: satellites that can be scaled in, and bases that would be
preempted.

Where jobs grow by satellites, both are jobs of the queue. On a cluster that allocates, a job's shares are
split into base and flexible workers. The base is counted first on nodes that are not lent, then on lent nodes
that are not under reclaim. So as few workers as possible have to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flexo.loaning.reclaim import BaseOn, Server
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.model.training import TrainingJob
from flexo_protos.resources import Amount

_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


@dataclass(frozen=True, slots=True)
class Flexible:
    """Workers of a job on one server that can be scaled in: a satellite, or a share if jobs have no
    satellites."""

    job: JobKey
    workers: int
    grant_id: str = ""
    """The grant; "": there is no grant to withdraw."""
    satellite_job_id: int = 0
    """The satellite's `QueuedJob.job_id`; 0: there is none yet, or never."""
    leaving: bool = False
    """Whether the workers are leaving already."""


@dataclass(frozen=True, slots=True)
class Base:
    """A job with base workers on a server."""

    job: JobKey
    gpus: Amount
    """GPUs of the job's whole base."""
    leaving: bool = False
    """Whether the base has ended, and its epilog runs."""


@dataclass(frozen=True, slots=True)
class ResidentJobs:
    """The jobs on one server. Inference may use an empty server as a whole."""

    flexible: tuple[Flexible, ...] = ()
    bases: tuple[Base, ...] = ()
    inference: tuple[int, ...] = ()
    """Identifiers of inference jobs that run there: the cluster has given them resources."""

    @property
    def empty(self) -> bool:
        """Whether no job trains there."""
        return not self.flexible and not self.bases

    @property
    def stays(self) -> frozenset[JobKey]:
        """The jobs that train there and are not leaving."""
        stay = {each.job for each in self.flexible if not each.leaving}
        return frozenset(stay | {each.job for each in self.bases if not each.leaving})

    def server(self, name: str, doomed: frozenset[JobKey]) -> Server:
        """The server as `reclaim` sees it. Jobs of `doomed` are preempted in any case and cost nothing
        more."""
        return Server(
            name,
            tuple(BaseOn(str(base.job), base.gpus) for base in self.bases if base.job not in doomed),
            sum(each.workers for each in self.flexible),
        )


NOBODY = ResidentJobs()


def in_queue(
    servers: Iterable[str],
    jobs: Iterable[QueuedJob],
    elastic: Iterable[ElasticJob],
    partition: str,
    inference_partition: str,
) -> Mapping[str, ResidentJobs]:
    """The jobs on each server, by the queue. `partition`: the partition of jobs on lent servers."""
    sheets = {name: _Sheet() for name in servers}
    granted: set[int] = set()
    for job in elastic:
        for grant in job.grants:
            granted.add(grant.satellite_job_id)
            if grant.node in sheets:
                leaving = grant.state is SatelliteState.LEAVING
                sheets[grant.node].flexible.append(
                    Flexible(job.key, grant.workers, grant.grant_id, grant.satellite_job_id, leaving)
                )
    for queued in jobs:
        if queued.state in _RUNS and queued.job_id not in granted:
            for name in sheets.keys() & set(queued.nodes):
                sheets[name].add(queued, partition, inference_partition)
    return {name: sheet.residents() for name, sheet in sheets.items()}


class _Sheet:
    """The jobs on one server, while the queue is read."""

    def __init__(self) -> None:
        self.flexible: list[Flexible] = []
        self._bases: list[Base] = []
        self._inference: list[int] = []

    def add(self, job: QueuedJob, partition: str, inference_partition: str) -> None:
        """Add a queued job that runs here and is no satellite with a grant."""
        ending = job.state is JobState.COMPLETING
        if job.satellite is not None:
            tag = job.satellite
            self.flexible.append(Flexible(tag.base, tag.workers, "", job.job_id, ending))
        elif partition in job.partitions:
            self._bases.append(Base(job.key, job.resources.gpus, ending))
        elif inference_partition in job.partitions and not ending:
            self._inference.append(job.job_id)

    def residents(self) -> ResidentJobs:
        """The jobs found on the server."""
        return ResidentJobs(tuple(self.flexible), tuple(self._bases), tuple(self._inference))


def on_allocating(
    open_servers: Iterable[str], closed_servers: Iterable[str], training: Iterable[TrainingJob]
) -> Mapping[str, ResidentJobs]:
    """The jobs on each server of a cluster where jobs have shares instead of satellites. `closed_servers` are
    under reclaim."""
    rank = dict.fromkeys(open_servers, 1) | dict.fromkeys(closed_servers, 2)
    flexible: dict[str, list[Flexible]] = {name: [] for name in rank}
    bases: dict[str, list[Base]] = {name: [] for name in rank}
    for job in training:
        if not any(share.node in rank for share in job.shares):
            continue
        for node, workers, is_base in _split(job, rank):
            if is_base:
                bases[node].append(Base(job.key, job.workers.min * job.shape.gpus))
            else:
                flexible[node].append(Flexible(job.key, workers))
    return {name: ResidentJobs(tuple(flexible[name]), tuple(bases[name])) for name in rank}


def _split(job: TrainingJob, rank: Mapping[str, int]) -> Iterator[tuple[str, int, bool]]:
    """Per share of a job on a lent server: the server, its workers there, and whether the base is among
    them."""
    pinned = {share.node for share in job.base}
    missing = job.workers.min

    def order(index: int) -> tuple[bool, int, int, int]:
        share = job.shares[index]
        return share.node not in pinned, rank.get(share.node, 0), -share.workers, index

    for index in sorted(range(len(job.shares)), key=order):
        share = job.shares[index]
        is_base = share.node in pinned or missing > 0
        missing -= share.workers
        if share.node in rank:
            yield share.node, share.workers, is_base


def doomed_by(residents: Mapping[str, ResidentJobs], servers: Sequence[str]) -> frozenset[JobKey]:
    """Jobs that are preempted if these servers are reclaimed."""
    return frozenset(base.job for name in servers if name in residents for base in residents[name].bases)
