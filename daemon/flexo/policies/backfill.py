"""EASY backfilling: the head of the queue has a reservation, and other jobs may not delay it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import ClassVar

from flexo.model.plans import Note
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import requested, seconds_left
from flexo.policies.fifo import start
from flexo.policies.placement import FreeGpus, Placement
from flexo.words import duration
from flexo_protos.resources import Amount, total

_Running = tuple[float, TrainingJob, tuple[NodeShare, ...]]
"""The expected end of a job, the job, and its nodes."""


@dataclass(frozen=True, slots=True)
class Backfill(Policy):
    """First come, first served. Jobs further back start now if they do not delay the head of the queue.

    Lifka, "The ANL/IBM SP scheduling system" (1995): the first job that does not fit gets a reservation. The
    reservation begins at the earliest instant at which this job fits, by the estimated ends of the running
    jobs. A job behind it starts now if it fits now and either ends before that instant, or leaves enough for
    the head then. Ends are estimated from `TrainingJob.remaining_work` and `.speed`: from time limits where
    nothing else is known.
    """

    name: ClassVar[str] = "backfill"

    depth: int = 500
    """Number of pending jobs that are considered, from the head of the queue."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """Start jobs in order as long as they fit, then jobs that fit beside the reservation of the first
        that does not."""
        if not placement.any_idle:
            return Targets()
        queue = islice(jobs.waiting(), self.depth)
        turn = _Pass(jobs, placement)
        head = turn.in_order(queue)
        if head is None:
            return Targets(tuple(turn.started))
        reservation = turn.beside(head, queue)
        text = f"first in the queue: {requested(head)} workers do not fit yet"
        if reservation is not None and reservation.at < math.inf:
            text += f", but will in {duration(reservation.at - jobs.at)}"
        return Targets(tuple(turn.started), notes=(Note(head.key, text),))


class _Pass:
    """One pass over the queue. Mutable."""

    def __init__(self, jobs: Jobs, placement: Placement) -> None:
        self._jobs = jobs
        self._placement = placement
        self._free = placement.free()
        self._running: list[_Running] = []
        """The jobs that start, with their expected ends."""
        self.started: list[Target] = []

    def in_order(self, queue: Iterator[TrainingJob]) -> TrainingJob | None:
        """Start jobs as long as they fit. Returns the first that does not; None: there is none, or no GPU is
        left."""
        for job in queue:
            workers = requested(job)
            shares = self._free.place(job.shape, workers)
            if shares is not None:
                ends_at = _would_end_at(job, workers, len(shares), self._jobs.at)
                self._start(job, shares, ends_at, "it is the first in the queue")
            elif self._placement.could_ever_hold(job, workers):
                return job
            if not self._free.total:
                return None
        return None

    def beside(self, head: TrainingJob, queue: Iterator[TrainingJob]) -> _Reservation | None:
        """Start jobs that do not delay `head`. Returns the reservation of `head`; None: no job made it
        necessary."""
        now, idle = self._jobs.at, self._free.total
        largest = max(node.gpus for node in self._placement.nodes)
        reservation: _Reservation | None = None
        for job in queue:
            workers = requested(job)
            gpus = workers * job.shape.gpus
            if gpus > idle:
                continue
            if reservation is None:
                reservation = _Reservation.of(head, self._jobs, self._placement, self._running)
            # most jobs are rejected here, without a search for nodes
            if gpus > reservation.spare and not reservation.is_after(
                _would_end_at(job, workers, -(-gpus // largest), now)
            ):
                continue
            self._start_beside(reservation, job, workers)
            idle = self._free.total
            if not idle:
                break
        return reservation

    def _start_beside(self, reservation: _Reservation, job: TrainingJob, workers: int) -> None:
        shares = self._free.place(job.shape, workers)
        if shares is None:
            return
        ends_at = _would_end_at(job, workers, len(shares), self._jobs.at)
        if reservation.is_after(ends_at):
            self._start(job, shares, ends_at, f"it ends before job {reservation.head.key} can start")
        elif reservation.leaves_room(job, shares):
            self._start(job, shares, ends_at, f"job {reservation.head.key} has room enough beside it")

    def _start(self, job: TrainingJob, shares: tuple[NodeShare, ...], ends_at: float, why: str) -> None:
        self._free.take(job.shape, shares)
        self._running.append((ends_at, job, shares))
        self.started.append(start(job, self._placement.put(job.key, shares), why))


class _Reservation:
    """The instant at which the head of the queue will fit, and the GPUs that are free then. Mutable.

    The free GPUs include those that the head itself will take.
    """

    def __init__(self, head: TrainingJob, at: float, free: FreeGpus) -> None:
        self.head = head
        self.at = at
        """Infinite: by no estimate will the head ever fit. Then only jobs with a known end start beside
        it."""
        self._free = free
        self.spare = self._count_spare()
        """GPUs free then that the head does not need: no job with more can run beside it."""

    @classmethod
    def of(
        cls, head: TrainingJob, jobs: Jobs, placement: Placement, started: Sequence[_Running]
    ) -> _Reservation:
        """Make the reservation: running jobs end, the soonest first, until `head` fits.

        `started`: the jobs that start in this pass.
        """
        free = placement.free()
        running = _ending(jobs, placement)
        for ends_at, job, shares in started:
            free.take(job.shape, shares)
            if ends_at < math.inf:
                running.append((ends_at, job, shares))
        running.sort(key=itemgetter(0))
        at = math.inf
        for ends_at, job, shares in running:
            if ends_at > at:
                break
            free.give(job.shape, shares)
            if at == math.inf and _fits(free, head):
                at = ends_at  # jobs that end at the same instant count, too
        return cls(head, at, free)

    def is_after(self, ends_at: float) -> bool:
        """Whether a job that ends at `ends_at` has ended by the begin of the reservation."""
        return ends_at <= self.at and ends_at < math.inf

    def leaves_room(self, job: TrainingJob, shares: tuple[NodeShare, ...]) -> bool:
        """Whether the head fits beside `job` even if `job` never ends. If so, takes the GPUs of `job` for
        good."""
        self._free.take(job.shape, shares)
        if _fits(self._free, self.head):
            self.spare = self._count_spare()
            return True
        self._free.give(job.shape, shares)
        return False

    def _count_spare(self) -> Amount:
        return self._free.total - requested(self.head) * self.head.shape.gpus


def _ending(jobs: Jobs, placement: Placement) -> list[_Running]:
    """Running jobs with a known end. The search stops once it has found all GPUs that are held."""
    found: list[_Running] = []
    held = total([node.allocated.gpus for node in placement.nodes])
    for job in jobs.training:
        if not job.shares:
            continue
        ends_at = _ends_at(job, jobs.at)
        if ends_at < math.inf:
            found.append((ends_at, job, job.shares))
        held -= job.gpus
        if held <= 0:
            break
    return found


def _fits(free: FreeGpus, job: TrainingJob) -> bool:
    workers = requested(job)
    return workers * job.shape.gpus <= free.total and free.workers(job.shape) >= workers


def _ends_at(job: TrainingJob, now: float) -> float:
    """The expected end of a running job; now, if it should have ended already; infinite: not known."""
    if job.remaining_work is None or (rate := job.rate_now) <= 0:
        return math.inf
    since = now if job.as_of is None else job.as_of
    if job.resumes_at > since:
        since = job.resumes_at
    ends_at = since + job.remaining_work / rate
    return ends_at if ends_at > now else now


def _would_end_at(job: TrainingJob, workers: int, nodes: int, now: float) -> float:
    """The expected end of a pending job if it starts now."""
    return now + job.start_cost_s + seconds_left(job, workers, nodes, now)
