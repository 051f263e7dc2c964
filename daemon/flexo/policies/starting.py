"""Lyra's phase 1: starts bases, the shortest running time first, and finds their nodes (slides).

"Prioritise base demand using shortest-job-first to minimise queuing time." Flexible workers give way to
bases.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from flexo.model.measured import Source
from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob
from flexo.policies.demand import fewest_workers
from flexo.policies.flexible import RunningTimes, count
from flexo.policies.reservation import Reservation
from flexo.policies.resize_benefit import WaitModel
from flexo.policies.servers import Servers, Shares
from flexo.policies.taking import Taking
from flexo_protos.resources import Amount, Resources, total

Start = tuple[TrainingJob, Shares]
"""A job that starts, and the place of its base."""
_Kept = tuple[Reservation, frozenset[str]]
"""A reservation for a base, and the GPU types that the base may have."""


@dataclass(frozen=True, slots=True)
class StarvationLimit:
    """The limit beyond which a job has waited for too long: both times must be over."""

    seconds: float
    running_times: float
    """The limit in the job's own running times on its base."""
    share: float
    """The part of the cluster's GPUs that such jobs may hold. Beyond that, the next one waits like others."""


class Starting:
    """The bases that start with one plan. Their GPUs are taken from the servers. Mutable."""

    def __init__(
        self, servers: Servers, taking: Taking, times: RunningTimes, kept_for_small: float = 0.0
    ) -> None:
        """`kept_for_small`: GPUs that stay idle or flexible where a larger base of uncertain running time
        takes flexible workers, if not all bases that wait find room."""
        self._servers = servers
        self._taking = taking
        self._times = times
        self._room = servers.total + taking.total
        """GPUs that are idle, or that flexible workers hold."""
        self._all_types = frozenset(servers.gpu_types)
        self._starts: dict[JobKey, Start] = {}
        self._kept_for_small = kept_for_small
        self._all_have_room = True
        """Whether there are GPUs for all bases that wait: then none of them stands in another's way."""
        self._small: Amount | None = None
        """GPUs of the largest base that counts as small; None: nothing has asked yet."""
        self._refused: dict[tuple[Resources, bool, bool, bool, bool], int] = {}
        """Per kind of job (all that matters for a place but the number of workers): a number of workers that
        found none."""
        self._waiting: Sequence[TrainingJob] = ()
        self._running: Sequence[TrainingJob] = ()
        self._waits: dict[frozenset[str], WaitModel] = {}
        """Per set of GPU types that are faster than others for some job: the model of waits for them."""
        self._passed_over: list[TrainingJob] = []
        """Bases that wait on, in order; only filled if there are several GPU types."""

    @property
    def starts(self) -> Iterator[Start]:
        """The jobs that start, with the nodes of their bases."""
        return iter(self._starts.values())

    def start_bases(
        self,
        waiting: Sequence[TrainingJob],
        running: Sequence[TrainingJob],
        patience: StarvationLimit,
        gpus: Amount,
    ) -> None:
        """Start the bases that fit: jobs that have waited for too long first, then the shortest.

        `gpus`: of the whole cluster.
        """
        self._waiting, self._running = waiting, running
        self._all_have_room = total(map(_gpus, waiting)) <= self._room
        overdue = _first(waiting, running, self._times, patience, gpus)
        head = next((job for job in overdue if not self._start(job, anywhere=True)), None)
        kept = None if head is None else self._reserve(head)
        if head is not None:
            self._pass_over(head)
        self._start_shortest_first(waiting, kept)
        if len(self._starts) > 1:
            self._place_decreasing()

    def _start_shortest_first(self, waiting: Sequence[TrainingJob], kept: _Kept | None) -> None:
        # Thousands may wait at each of a simulation's events: nothing is made for each of them here.
        asked = [job.workers.min * job.shape.gpus for job in waiting]  # `_gpus` takes as long again
        room, on_base = self._room, self._times.on_base
        fitting = [index for index, gpus in enumerate(asked) if gpus <= room]
        if self._starts:
            fitting = [index for index in fitting if waiting[index].key not in self._starts]
        all_seconds = [on_base(waiting[index]) for index in fitting]
        fewest = min(map(asked.__getitem__, fitting), default=0)
        for place in sorted(range(len(fitting)), key=all_seconds.__getitem__):
            if self._room < fewest:
                return
            seconds, job = all_seconds[place], waiting[fitting[place]]
            if kept is None:
                if not self._start(job):
                    self._pass_over(job)
                continue
            reserved, gpu_types = kept
            late = self._times.now + seconds > reserved.at
            if reserved.spare < fewest and late and gpu_types >= self._all_types:
                return  # this one would delay the head, and so would all after it, which run longer
            gpus = _gpus(job) if gpu_types & self._types_for(job) else 0
            ends_at = self._times.now + job.start_cost_s + seconds
            if reserved.allows(gpus, ends_at) and self._start(job):
                reserved.started(gpus, ends_at)
            else:
                self._pass_over(job)

    def _reserve(self, head: TrainingJob) -> _Kept | None:
        """The reservation for `head`, which does not fit now; None: no node could hold a worker of it."""
        if head.shape.gpus > self._times.node_gpus:
            return None
        gpu_types = self._types_for(head)
        return Reservation.of(
            _gpus(head), self._room_on(gpu_types), self._ends(gpu_types), self._times.now
        ), gpu_types

    def _room_on(self, gpu_types: Iterable[str]) -> Amount:
        """GPUs of these types that are idle, or that flexible workers hold."""
        return total(self._servers.free(each) + self._taking.gpus_on(each) for each in gpu_types)

    def _ends(self, gpu_types: Container[str]) -> Iterator[tuple[float, Amount]]:
        """Per job that runs or starts with this plan: its expected end, and the GPUs of these types that it
        has."""
        now = self._times.now
        for job in self._running:
            gpus = min(_base_gpus(job), self._gpus_on(gpu_types, job, job.shares))
            yield now + self._times.as_it_runs(job), gpus
        for job, shares in self._starts.values():
            yield self._ends_at(job), self._gpus_on(gpu_types, job, shares)

    def _ends_at(self, job: TrainingJob) -> float:
        """The expected end of a job that starts now."""
        return self._times.now + job.start_cost_s + self._times.on_base(job)

    def _types_for(self, job: TrainingJob) -> frozenset[str]:
        return frozenset(chain.from_iterable(self._servers.base_types(job)))

    def _gpus_on(self, gpu_types: Container[str], job: TrainingJob, shares: Shares) -> Amount:
        there = [share for share in shares if self._servers.gpu_type_of(share) in gpu_types]
        return count(there) * job.shape.gpus

    def _start(self, job: TrainingJob, *, anywhere: bool = False) -> bool:
        """Start the job if there is room, which flexible workers may have to make. Returns whether it starts.

        Unless `anywhere`, the job starts on slower GPUs only if it would not end earlier by waiting for
        faster ones, and takes flexible workers only if it may.
        """
        workers = job.workers.min
        may_take = anywhere or self._may_take(job)
        kind = (job.shape, job.fungible, job.heterogeneous, job.elastic, may_take)
        if _gpus(job) > (self._room if may_take else self._servers.total):
            return False
        if workers >= self._refused.get(kind, workers + 1):
            return False
        choices = self._servers.base_types(job)
        best = max((self._servers.pace(job, each) for each in choices), default=1.0)
        fast = [each for each in choices if self._servers.pace(job, each) >= best]
        slow = [each for each in choices if each not in fast]
        shares = self._find(job, fast, may_take)
        if shares is None:
            worth = slow if anywhere else [each for each in slow if self._pays(job, each, fast)]
            shares = self._find(job, worth, may_take)
            if shares is None and worth == slow:
                self._refused[kind] = workers
        if shares is None:
            return False
        self._servers.take(job.shape, shares)
        self._starts[job.key] = (job, shares)
        self._room -= _gpus(job)
        for gpu_types, waits in self._waits.items():
            waits.starts(self._gpus_on(gpu_types, job, shares), self._ends_at(job))
        return True

    def _pass_over(self, job: TrainingJob) -> None:
        """Record that the job does not start with this plan."""
        if len(self._all_types) > 1:
            self._passed_over.append(job)
            for gpu_types, waits in self._waits.items():
                self._wait(job, gpu_types, waits)

    def _wait(self, job: TrainingJob, gpu_types: frozenset[str], waits: WaitModel) -> None:
        if gpu_types & self._types_for(job):
            waits.waits(_gpus(job), self._times.on_base(job))

    def _may_take(self, job: TrainingJob) -> bool:
        """Whether the base may take flexible workers.

        A base cannot be taken back, and the median of like jobs says little of how long it will run. If large
        bases took all flexible workers as soon as nothing shorter waits, the next small ones would find none.
        """
        if self._all_have_room or (job.source is not Source.HISTORY and job.remaining_work is not None):
            return True
        gpus = _gpus(job)
        return gpus <= self._small_gpus() or self._room - gpus >= self._kept_for_small

    def _small_gpus(self) -> Amount:
        """GPUs of the smallest base that waits or runs, at least one: where no job is smaller than a node,
        nothing is kept from such jobs."""
        if self._small is None:
            self._small = max(1, min(map(_gpus, chain(self._waiting, self._running)), default=1))
        return self._small

    def _find(self, job: TrainingJob, choices: Sequence[tuple[str, ...]], may_take: bool) -> Shares | None:
        """Nodes for the base on idle GPUs, else on GPUs that flexible workers give up, if it `may_take` them;
        None: there are none."""
        ways = (self._servers.place_base, self._taking.make_room)
        for way in ways if may_take else ways[:1]:
            for gpu_types in choices:
                shares = way(job, gpu_types)
                if shares is not None:
                    return shares
        return None

    def _pays(self, job: TrainingJob, slow: tuple[str, ...], fast: Sequence[tuple[str, ...]]) -> bool:
        """Whether the job ends earlier on slower GPUs now than on faster ones after the wait for them."""
        faster = frozenset(chain.from_iterable(fast))
        pace, best = self._servers.pace(job, slow), self._servers.pace(job, fast[0])
        lost_s = self._times.on_base(job) * (1 / pace - 1 / best)
        return lost_s <= self._waits_for(faster).for_s(_gpus(job))

    def _waits_for(self, gpu_types: frozenset[str]) -> WaitModel:
        waits = self._waits.get(gpu_types)
        if waits is None:
            waits = WaitModel(self._times.now, self._room_on(gpu_types), self._ends(gpu_types))
            for job in self._passed_over:
                self._wait(job, gpu_types, waits)
            self._waits[gpu_types] = waits
        return waits

    def _place_decreasing(self) -> None:
        """Place all starting bases again, the largest first ("best-fit decreasing"), if all then fit and none
        is slower."""
        starts = sorted(self._starts.values(), key=lambda start: -_gpus(start[0]))
        for job, shares in starts:
            self._servers.give(job.shape, shares)
        placed: dict[JobKey, Start] = {}
        for job, shares in starts:
            shares_now = self._place_as_well(job, shares)
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

    def _place_as_well(self, job: TrainingJob, shares: Shares) -> Shares | None:
        """Nodes on GPUs that are not slower than those of `shares`; None: there are none."""
        pace = self._servers.pace(job, {self._servers.gpu_type_of(share) or "" for share in shares})
        for gpu_types in self._servers.base_types(job):
            if self._servers.pace(job, gpu_types) >= pace:
                placed = self._servers.place_base(job, gpu_types)
                if placed is not None:
                    return placed
        return None


def in_order(
    waiting: Sequence[TrainingJob],
    running: Iterable[TrainingJob],
    times: RunningTimes,
    patience: StarvationLimit,
    gpus: Amount,
) -> list[TrainingJob]:
    """Pending jobs in the order in which they are to start. `gpus`: of the whole cluster."""
    first = list(_first(waiting, running, times, patience, gpus))
    keys = {job.key for job in first}
    return [*first, *sorted((job for job in waiting if job.key not in keys), key=times.on_base)]


def _first(
    waiting: Iterable[TrainingJob],
    running: Iterable[TrainingJob],
    times: RunningTimes,
    patience: StarvationLimit,
    gpus: Amount,
) -> Iterator[TrainingJob]:
    """Jobs that go first because they have waited for too long, the longest wait first.

    Running jobs that had waited for too long count against the share that such jobs may have. Where the whole
    queue has waited for too long, the rest of the cluster still goes by running times, and the queue gets
    shorter again. It is lazy: mostly only one is asked for.
    """
    left: float | None = None
    long = [job for job in waiting if times.now - job.waiting_since >= patience.seconds]
    for job in sorted(long, key=attrgetter("waiting_since")):
        if times.now - job.waiting_since < patience.running_times * times.on_base(job):
            continue
        if left is None:
            held = total(_base_gpus(job) for job in running if _had_waited(job, patience))
            left = patience.share * gpus - held
        if left <= 0:
            return
        left -= _gpus(job)
        yield job


def _had_waited(job: TrainingJob, patience: StarvationLimit) -> bool:
    """Whether a running job had waited for so long when it started. Its running time does not matter: once it
    outruns its estimate, it would no longer count."""
    return job.started_at is not None and job.started_at - job.waiting_since >= patience.seconds


def _gpus(job: TrainingJob) -> Amount:
    """GPUs that the job needs to start."""
    return job.workers.min * job.shape.gpus


def _base_gpus(job: TrainingJob) -> Amount:
    """GPUs of a running job that are not flexible."""
    return fewest_workers(job) * job.shape.gpus
