"""Lyra's phase 1: starts bases, the shortest running time first, and says where they go (slides).

"Prioritise base demand using shortest-job-first to minimise queuing time." Flexible workers give way to it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import chain
from operator import attrgetter

from flexo.model import JobKey, TrainingJob, WorkerShape
from flexo.policies.demand import least
from flexo.policies.flexible import RunningTimes, count
from flexo.policies.reservation import Reservation
from flexo.policies.servers import Servers, Shares
from flexo.policies.taking import Taking

Start = tuple[TrainingJob, Shares]
"""A job that starts, and the place of its base."""
_Kept = tuple[Reservation, frozenset[str]]
"""Room for a base, and the GPU types that it may have."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When a job has waited for too long: both must be over."""

    seconds: float
    running_times: float
    """In its own running time on its base."""


class Starting:
    """The bases that start with one plan. What they take is taken from the servers. Mutable."""

    def __init__(self, servers: Servers, taking: Taking, times: RunningTimes) -> None:
        self._servers = servers
        self._taking = taking
        self._times = times
        self._room = servers.total + taking.total
        """GPUs that are idle, or of flexible workers."""
        self._all_types = frozenset(servers.gpu_types)
        self._starts: dict[JobKey, Start] = {}
        self._refused: dict[tuple[WorkerShape, bool, bool, bool], int] = {}
        """By all that matters for a place but the number of workers, a number that found none."""

    @property
    def starts(self) -> Iterator[Start]:
        """Jobs and the places of their bases."""
        return iter(self._starts.values())

    def start_bases(
        self, waiting: Sequence[TrainingJob], running: Iterable[TrainingJob], patience: Patience
    ) -> None:
        """Start what fits: whoever has waited for too long first, then the shortest first."""
        overdue = _overdue(waiting, self._times, patience)
        head = next((job for job in overdue if not self._start(job)), None)
        kept = None if head is None else self._reserve(head, running)
        self._start_shortest_first(waiting, kept)
        if len(self._starts) > 1:
            self._place_decreasing()

    def _start_shortest_first(self, waiting: Sequence[TrainingJob], kept: _Kept | None) -> None:
        asked = [job.workers.min * job.shape.gpus for job in waiting]  # _gpus, which here takes as long again
        queue = [
            (self._times.on_base(job), index, job)
            for index, job in enumerate(waiting)
            if asked[index] <= self._room and job.key not in self._starts
        ]
        heapify(queue)
        fewest = min((asked[index] for _, index, _ in queue), default=0)
        while queue and self._room >= fewest:
            seconds, _, job = heappop(queue)
            if kept is None:
                self._start(job)
                continue
            room, gpu_types = kept
            if room.spare < fewest and self._times.now + seconds > room.at and gpu_types >= self._all_types:
                return  # this one would delay the head, and so would all after it, which run longer
            gpus = _gpus(job) if gpu_types & self._types_for(job) else 0
            ends_at = self._times.now + job.start_cost_s + seconds
            if room.allows(gpus, ends_at) and self._start(job):
                room.started(gpus, ends_at)

    def _reserve(self, head: TrainingJob, running: Iterable[TrainingJob]) -> _Kept | None:
        """Room for `head`, which does not fit now; None for one that no node could hold a worker of."""
        if head.shape.gpus > self._times.node_gpus:
            return None
        now, gpu_types = self._times.now, self._types_for(head)
        ends = [
            (
                now + self._times.as_it_runs(job),
                min(_base_gpus(job), self._gpus_on(gpu_types, job, job.shares)),
            )
            for job in running
        ]
        ends += [
            (now + job.start_cost_s + self._times.on_base(job), self._gpus_on(gpu_types, job, shares))
            for job, shares in self._starts.values()
        ]
        room = sum(self._servers.free(each) + self._taking.gpus_on(each) for each in gpu_types)
        return Reservation.of(_gpus(head), room, ends, now), gpu_types

    def _types_for(self, job: TrainingJob) -> frozenset[str]:
        return frozenset(chain.from_iterable(self._servers.base_types(job)))

    def _gpus_on(self, gpu_types: Container[str], job: TrainingJob, shares: Shares) -> int:
        there = [share for share in shares if self._servers.gpu_type_of(share) in gpu_types]
        return count(there) * job.shape.gpus

    def _start(self, job: TrainingJob) -> bool:
        """Start it if there is room, which flexible workers may have to make."""
        workers = job.workers.min
        kind = (job.shape, job.fungible, job.heterogeneous, job.elastic)
        if _gpus(job) > self._room or workers >= self._refused.get(kind, workers + 1):
            return False
        shares = self._place(job) or self._make_room(job)
        if shares is None:
            self._refused[kind] = workers
            return False
        self._servers.take(job.shape, shares)
        self._starts[job.key] = (job, shares)
        self._room -= _gpus(job)
        return True

    def _place(self, job: TrainingJob) -> Shares | None:
        found = (self._servers.place_base(job, types) for types in self._servers.base_types(job))
        return next((shares for shares in found if shares is not None), None)

    def _make_room(self, job: TrainingJob) -> Shares | None:
        found = (self._taking.make_room(job, types) for types in self._servers.base_types(job))
        return next((shares for shares in found if shares is not None), None)

    def _place_decreasing(self) -> None:
        """Place them all again, the largest first ("best-fit decreasing"), if all fit so."""
        starts = sorted(self._starts.values(), key=lambda start: -_gpus(start[0]))
        for job, shares in starts:
            self._servers.give(job.shape, shares)
        placed: dict[JobKey, Start] = {}
        for job, _ in starts:
            shares_now = self._place(job)
            if shares_now is None:
                break
            self._servers.take(job.shape, shares_now)
            placed[job.key] = (job, shares_now)
        else:
            self._starts = placed
            return
        for job, shares in placed.values():
            self._servers.give(job.shape, shares)
        for job, shares in starts:
            self._servers.take(job.shape, shares)


def in_order(waiting: Sequence[TrainingJob], times: RunningTimes, patience: Patience) -> list[TrainingJob]:
    """Pending jobs in the order in which they are to start."""
    overdue = _overdue(waiting, times, patience)
    others = [job for job in waiting if not _is_overdue(job, times, patience)]
    return [*overdue, *sorted(others, key=times.on_base)]


def _overdue(
    waiting: Iterable[TrainingJob], times: RunningTimes, patience: Patience
) -> Iterator[TrainingJob]:
    """Those that have waited for too long, the longest first; mostly nobody asks for more than one."""
    by_wait = sorted(waiting, key=attrgetter("waiting_since"))
    return (job for job in by_wait if _is_overdue(job, times, patience))


def _is_overdue(job: TrainingJob, times: RunningTimes, patience: Patience) -> bool:
    waited_s = times.now - job.waiting_since
    return waited_s >= patience.seconds and waited_s >= patience.running_times * times.on_base(job)


def _gpus(job: TrainingJob) -> int:
    """GPUs that it needs to start."""
    return job.workers.min * job.shape.gpus


def _base_gpus(job: TrainingJob) -> int:
    """GPUs of a running job that are not flexible."""
    return least(job) * job.shape.gpus
