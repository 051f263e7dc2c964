"""One job while it waits or runs in a simulation: its true state, its shares, and the picture for
policies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexo.model.measured import Source
from flexo.model.queue import JobKey
from flexo.model.training import Held, NodeShare, TrainingJob
from flexo_simulation.costs import Costs
from flexo_simulation.estimates import Estimate, Estimator
from flexo_simulation.records import End, JobRecord
from flexo_simulation.seats import ALONE, Beside, Seated
from flexo_simulation.workload import TraceJob


class LiveJob:
    """The state of one job. Mutable: belongs to the simulation. Times are virtual seconds."""

    __slots__ = (
        "_advanced_at",
        "_beside_s",
        "_estimate",
        "_first_start_at",
        "_gpu_s",
        "_last_change_at",
        "_lost_s",
        "_most_workers",
        "_pace",
        "_preemptions",
        "_resizes",
        "_resumes_at",
        "_samples",
        "_shares",
        "_started_at",
        "_timeline",
        "_type_pace",
        "_waiting_since",
        "_work",
        "_workers",
        "beside",
        "due_at",
        "guaranteed",
        "key",
        "on_loan",
        "run",
        "second",
        "trace",
        "utilization",
        "version",
    )

    def __init__(self, trace: TraceJob, utilization: float = 1.0) -> None:
        self.key = JobKey(trace.job_id)
        self.trace = trace
        self.run = trace.training.begin()
        self.due_at = math.inf
        """Time of the job's next update by the simulation."""
        self.version = 0
        """The version of the scheduled update: one of an older version is void."""
        self.guaranteed = False
        """Whether it runs within its tenant's quota."""
        self.second = False
        """Whether its seats are second ones."""
        self.utilization = utilization
        """The share of the time in which it keeps a GPU of its own busy."""
        self.on_loan = False
        """Whether it has ever had GPUs of inference servers."""
        self._shares: tuple[NodeShare, ...] = ()
        self._type_pace = 1.0
        """The speed on the GPU types of the shares, relative to the type for which its training is the
        truth."""
        self.beside = ALONE
        """What it has of the other jobs on its GPUs."""
        self._pace = 1.0
        """Both together."""
        self._beside_s = 0.0
        """Seconds that it trained in owners' seats with another job on one of its GPUs."""
        self._lost_s = 0.0
        """The part of `_beside_s` that it lost by the other jobs."""
        self._workers = 0
        self._samples = 0
        self._advanced_at = trace.submitted_at
        """Time up to which all that the job has held and done is counted."""
        self._resumes_at = 0.0
        self._started_at: float | None = None
        self._first_start_at: float | None = None
        self._waiting_since = trace.submitted_at
        self._last_change_at = 0.0
        self._gpu_s = 0.0
        self._resizes = 0
        self._preemptions = 0
        self._most_workers = 0
        self._timeline: tuple[Held, ...] = ()
        self._work = self.run.remaining_work()
        """The work from beginning to end."""
        self._estimate: Estimate | None = None

    @property
    def allocated(self) -> int:
        """The number of its workers now."""
        return self._workers

    @property
    def steady(self) -> bool:
        """Whether the job needs no update while nothing happens to it."""
        return self.run.steady

    def advance(self, now: float) -> float:
        """Count all that the job has held and done until `now`. Returns the time of its end, or `now`."""
        since = self._advanced_at
        self._advanced_at = now
        if not self._workers:
            return now
        trained_s = now - max(since, self._resumes_at)
        if trained_s > 0:
            trained = self.run.advance(trained_s * self._pace, self._shares, self._samples)
            now -= trained_s - trained / self._pace
            if self.beside.shares and not self.second:
                self._beside_s += trained / self._pace
                self._lost_s += trained / self._pace * (1 - self.beside.speed)
        self._gpu_s += self._workers * self.trace.shape.gpus * (now - since)
        return now

    def reshare(
        self,
        now: float,
        shares: tuple[NodeShare, ...],
        pace: float,
        samples: int,
        costs: Costs,
        checkpoints: bool,
    ) -> None:
        """Give the job `shares` from now on, at `pace`, and charge the costs. Without shares, it waits
        again."""
        self.advance(now)
        before, self._shares, self._samples = self._shares, shares, samples
        self._type_pace, self._pace = pace, pace * self.beside.speed
        if _same(before, shares):
            return
        self._workers = sum(share.workers for share in shares)
        self._resumes_at = now + costs.of_change(before, shares)
        self._last_change_at = now
        self._most_workers = max(self._most_workers, self._workers)
        self._timeline = (*self._timeline, Held(now, self._workers, len(shares)))
        if not shares:
            self._be_preempted(now, checkpoints)
        elif not before:
            self._started_at = now
            if self._first_start_at is None:
                self._first_start_at = now
        else:
            self._resizes += 1

    def go_on_beside(self, now: float, beside: Beside) -> None:
        """Train beside these others from now on."""
        self.advance(now)
        self.beside, self._pace = beside, self._type_pace * beside.speed

    def _be_preempted(self, now: float, checkpoints: bool) -> None:
        self._preemptions += 1
        self._started_at = None
        self._waiting_since = now
        if not checkpoints:
            self.run = self.trace.training.begin()

    def next_at(self) -> float:
        """Time when the run ends or needs an update, or when the job outruns its estimate."""
        if not self._workers:
            return math.inf
        left_s = self.run.time_left_s(self._shares, self._samples) / self._pace
        if self._estimate is not None and self._estimate.good_for < math.inf:
            left = self.run.remaining_work()
            if left:
                left_s = min(left_s, left_s * self._estimate.good_for / left)
        return max(self._advanced_at, self._resumes_at) + left_s

    def seated(self) -> Seated:
        """The seats that the job has."""
        return Seated(self._shares, self.trace.shape.gpus, self.second, self.utilization)

    def limit_at(self) -> float:
        """Time when the job's time limit is over; infinite: it has none, or does not run."""
        if self._started_at is None or self.trace.time_limit_s is None:
            return math.inf
        return self._started_at + self.trace.time_limit_s

    def estimate(self, estimator: Estimator) -> None:
        """Estimate the job's remaining work from what is known by now."""
        left = self.run.remaining_work()
        if left is None or self._work is None or self.run.source is not Source.ORACLE:
            self._estimate = None
        else:
            self._estimate = estimator.estimate(self.trace, left, self._work - left, self.run.speed())

    def tell_history(self, estimator: Estimator) -> None:
        """Add the job, which has ended, to the history of running times."""
        if self._work is not None and self.run.source is Source.ORACLE:
            estimator.ended(self.trace, self._work, self.run.speed())

    def picture(self, costs: Costs, checkpoints: bool) -> TrainingJob:
        """The job as policies see it."""
        trace, run, estimate = self.trace, self.run, self._estimate
        return TrainingJob(
            key=self.key,
            user=trace.user,
            workers=trace.workers,
            shape=trace.shape,
            submitted_at=trace.submitted_at,
            requested_workers=trace.requested_workers,
            shares=self._shares,
            started_at=self._started_at,
            waiting_since=self._waiting_since,
            service_gpu_s=self._gpu_s,
            speed=run.speed(),
            speeds=run.speeds(),
            remaining_work=run.remaining_work() if estimate is None else estimate.work,
            source=run.source if estimate is None else estimate.source,
            batch=trace.batch,
            samples=self._samples,
            last_change_at=self._last_change_at,
            change_cost_s=costs.resize_s,
            start_cost_s=costs.start_s,
            most_workers=self._most_workers,
            tenant=trace.tenant,
            opportunistic=trace.opportunistic,
            guaranteed=self.guaranteed,
            fungible=trace.fungible,
            heterogeneous=trace.heterogeneous,
            application=trace.application,
            as_of=self._advanced_at if self._workers else None,
            resumes_at=self._resumes_at,
            history=self._timeline,
            pace=self._pace,
            checkpoints=checkpoints,
            shared=self.second,
            utilization=self.utilization,
        )

    def record(self, end: End, ended_at: float | None) -> JobRecord:
        """The record of the job."""
        return JobRecord(
            self.trace,
            end,
            self._first_start_at,
            ended_at,
            self._gpu_s,
            self._resizes,
            self._preemptions,
            self._timeline,
            self.on_loan,
            self._beside_s,
            self._lost_s,
        )


def _same(before: Sequence[NodeShare], after: Sequence[NodeShare]) -> bool:
    if before == after:
        return True
    return len(before) == len(after) and set(before) == set(after)
