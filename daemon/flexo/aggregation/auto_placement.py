"""Chooses whose Aggregators sum for jobs that leave it to flexod (`--aggregators=auto`). Pure.

The order: the job's own nodes, then satellites of the job, then the pool. Every job begins on its own nodes.
It leaves them only if its own Aggregators seem to hold it up, and stays elsewhere only if its iterations are
measured to be shorter there. Otherwise it goes back, and rests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from flexo.model.aggregation import AggregationUse, Placement, Summing
from flexo.model.elastic import LeaderReport
from flexo.model.queue import JobKey

BUSY: Final = 0.1
"""The part of a core that an Aggregator uses, and so of each iteration, from which on it may hold the job up.
A smaller gain is not worth a CPU of another node."""
GAIN: Final = 0.05
"""An iteration elsewhere must be shorter by this part. A leader's median is exact to a few percent."""
SETTLED_ITERATIONS: Final = 50
"""Iterations with an assignment before they are judged: the leader's median is from 40, and the first 10 are
slow, because connections and memory are new."""
WORSE_ITERATIONS: Final = 20
"""Iterations for which a job must be slower elsewhere than on its own nodes before it goes back."""
SATELLITES_WITHIN_S: Final = 120.0
"""The longest time that a job waits for a satellite that sums, before the pool is asked."""
POOL_WITHIN_S: Final = 600.0
"""The longest time that a job waits for the pool."""
KEPT_S: Final = 3600.0
"""How long a job is remembered whose leader is not attached."""
_BEFORE: Final = "it was there before flexod was started"


@dataclass(frozen=True, slots=True)
class _OwnTime:
    """The duration of an iteration on the job's own Aggregators, at one size of the job."""

    workers: int
    nodes: int
    seconds: float


@dataclass(slots=True)
class _AutoJob:
    """A job that leaves the choice to flexod. Mutable: AutoPlacement alone has it."""

    summing: Summing
    why: str
    waits_since: float
    """The time since which no Aggregator of the chosen kind sums for it."""
    seen_at: float
    """The time of its last report."""
    own: _OwnTime | None = None
    rests_until: float = 0.0
    is_proven: bool = False
    """Whether it was measured to be faster there than on its own nodes."""
    worse_from: int | None = None
    """The iteration at which it was first seen to be slower there; None: it is not."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """An entry for the event store: a job's gradients are to be summed elsewhere."""

    job: JobKey
    summing: Summing
    why: str


class AutoPlacement:
    """See the module. Mutable, for one thread."""

    def __init__(self, rest_s: float, *, has_pool: bool) -> None:
        """`rest_s`: how long a job that went back to its own Aggregators stays there. `has_pool`: whether
        the site has pool Aggregators."""
        self._rest_s = rest_s
        self._has_pool = has_pool
        self._jobs: dict[JobKey, _AutoJob] = {}
        self._changes: list[Replaced] = []

    def resolve(
        self, reports: Iterable[LeaderReport], now: float
    ) -> tuple[dict[JobKey, LeaderReport], tuple[Replaced, ...]]:
        """The reports, by job, with what flexod chooses in place of the choice that users have left to it,
        and the changes of choices. `now`: seconds of a clock that nobody sets."""
        self._changes = []
        resolved = {report.key: self._resolved(report, now) for report in reports}
        self._jobs = {key: job for key, job in self._jobs.items() if now <= job.seen_at + KEPT_S}
        return resolved, tuple(self._changes)

    def _resolved(self, report: LeaderReport, now: float) -> LeaderReport:
        use = report.aggregation
        if use is None or not use.auto:
            return report
        job = self._jobs.get(report.key)
        if job is None:
            job = self._jobs[report.key] = _met(report, use, now)
        job.seen_at = now
        self._advance(report, use, job, now)
        chosen = replace(
            use,
            wants_pool=job.summing is Summing.POOL,
            satellites=use.most_satellites if job.summing is Summing.SATELLITES else 0,
            placement=Placement(job.summing, job.why),
        )
        return replace(report, aggregation=chosen)

    def _advance(self, report: LeaderReport, use: AggregationUse, job: _AutoJob, now: float) -> None:
        """Take a job one step on."""
        if job.summing is Summing.OWN:
            self._leave_own(report, use, job, now)
        elif use.used:
            job.waits_since = now
            self._judge(report, use, job, now)
        elif job.summing is Summing.SATELLITES:
            if now > job.waits_since + SATELLITES_WITHIN_S:
                none = f"none of its satellites summed within {SATELLITES_WITHIN_S:.0f} s"
                self._go_on(report, job, none, now)
        elif not self._has_pool:
            self._go_back(report, job, "the site has no pool", now)
        elif now > job.waits_since + POOL_WITHIN_S:
            self._go_back(report, job, f"the pool had no room for it within {POOL_WITHIN_S:.0f} s", now)

    def _leave_own(self, report: LeaderReport, use: AggregationUse, job: _AutoJob, now: float) -> None:
        """Try other Aggregators, if the job's own ones seem to hold it up."""
        if use.used or now < job.rests_until:
            return
        if use.nodes < 2:
            job.why = "its workers are on one node, so no sum leaves the node"
        elif use.iterations < SETTLED_ITERATIONS or use.iteration_s <= 0:
            job.why = "its iterations are measured there first"
        elif not (reason := _held_up(report, use)):
            cpus = report.shape.cpus
            job.why = f"they use {use.busy:.0%} of a core, and its workers have {cpus} CPUs each"
        else:
            job.own = _OwnTime(report.training_workers, use.nodes, use.iteration_s)
            if use.most_satellites:
                self._place(report, job, Summing.SATELLITES, reason, now)
            else:
                self._go_on(report, job, f"{reason}, and its cluster has no satellites with CPUs only", now)

    def _judge(self, report: LeaderReport, use: AggregationUse, job: _AutoJob, now: float) -> None:
        """Send a job back that other Aggregators do not serve better than its own ones."""
        if use.iterations < SETTLED_ITERATIONS or use.iteration_s <= 0:
            return
        own = job.own
        if own is None or (own.workers, own.nodes) != (report.training_workers, use.nodes):
            job.worse_from = None  # times of different sizes say nothing
            if not job.is_proven:
                self._place(report, job, Summing.OWN, "it was resized, and is measured there again", now)
            return
        times = f"an iteration takes {use.iteration_s:.3g} s there, and {own.seconds:.3g} s on its own nodes"
        if not job.is_proven:
            if use.iteration_s > (1 - GAIN) * own.seconds:
                self._go_back(report, job, times, now)
            else:
                job.is_proven, job.why = True, f"{job.why}; {times}"
        elif use.iteration_s <= own.seconds:
            job.worse_from = None
        elif job.worse_from is None or job.worse_from > use.iterations:
            job.worse_from = use.iterations
        elif use.iterations >= job.worse_from + WORSE_ITERATIONS:
            self._go_back(report, job, times, now)

    def _go_on(self, report: LeaderReport, job: _AutoJob, why: str, now: float) -> None:
        """Ask the pool, if there is one."""
        if self._has_pool:
            self._place(report, job, Summing.POOL, why, now)
        else:
            self._go_back(report, job, f"{why}, and the site has no pool", now)

    def _go_back(self, report: LeaderReport, job: _AutoJob, why: str, now: float) -> None:
        """Have the job's own Aggregators sum for a while."""
        job.rests_until = now + self._rest_s
        self._place(report, job, Summing.OWN, f"{why}; it rests for {self._rest_s:.0f} s", now)

    def _place(self, report: LeaderReport, job: _AutoJob, summing: Summing, why: str, now: float) -> None:
        if summing is not job.summing:
            self._changes.append(Replaced(report.key, summing, why))
        job.summing, job.why, job.waits_since = summing, why, now
        job.is_proven, job.worse_from = False, None


def _met(report: LeaderReport, use: AggregationUse, now: float) -> _AutoJob:
    """A job that is new, or new to this flexod, which then leaves it where it is."""
    if not use.used:
        return _AutoJob(Summing.OWN, "it has just come", now, now)
    in_satellites = any(not satellite.workers for satellite in report.satellites)
    summing = Summing.SATELLITES if in_satellites else Summing.POOL
    return _AutoJob(summing, _BEFORE, now, now, is_proven=True)


def _held_up(report: LeaderReport, use: AggregationUse) -> str:
    """The sign that a job's own Aggregators hold it up; "": there is none."""
    if use.busy >= BUSY:
        return f"its own Aggregators use {use.busy:.0%} of a core"
    if report.shape.cpus <= 1:
        return "its workers have one CPU each, and leave none to its own Aggregators"
    return ""
