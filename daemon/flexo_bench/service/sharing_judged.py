"""What sharing Aggregators saves and costs, from sacct's lines and the jobs' logs. All functions are pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AggregatorJob:
    """The Slurm job of one Aggregator. Times are seconds since the epoch; None: not yet."""

    job_id: int
    user: str
    cores: int
    start: float | None
    end: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, in seconds since the epoch."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class JobLoss:
    """One job beside its neighbours. Steps are medians in seconds; None: too few steps."""

    name: str
    together_s: float | None
    """While all jobs train."""
    alone_s: float | None
    """While the neighbours are idle."""
    steps_together: int
    steps_alone: int

    @property
    def loss(self) -> float | None:
        """The part of its speed that the job loses; below 0: it is faster beside the others."""
        return _lost(self.alone_s, self.together_s)


@dataclass(frozen=True, slots=True)
class GreedyNeighbour:
    """A job beside the greedy one. Steps are medians in seconds, losses parts of its speed; None: too few."""

    before_s: float | None
    during_s: float | None
    after_s: float | None
    loss_during: float | None
    loss_after: float | None


@dataclass(frozen=True, slots=True)
class Drain:
    """An Aggregator that flexod has told to end. Times are seconds since the epoch."""

    aggregator: str
    slurm_job: int
    told_at: float
    ended_at: float | None
    """As Slurm has it, in whole seconds; None: it has not ended."""
    state: str
    """Of its Slurm job."""


_CAME = re.compile(r"pool Aggregator (\S+) has come in Slurm job (\d+)")
_TOLD = re.compile(r"pool Aggregator (\S+) is told to end")
LEAST_STEPS = 5
"""The fewest steps whose median counts."""


def aggregator_jobs(lines: str) -> list[AggregatorJob]:
    """Jobs in sacct's lines JobIDRaw|User|AllocCPUS|Start|End|State, with times as %s. Raises ValueError."""
    jobs = []
    for line in lines.splitlines():
        words = line.split("|")
        if len(words) != 6:
            raise ValueError(f"sacct's line '{line}' has {len(words)} columns; 6 are expected")
        job_id, user, cores, start, end, state = words
        jobs.append(AggregatorJob(int(job_id), user, int(cores), _time(start), _time(end), state))
    return jobs


def core_seconds(jobs: Iterable[AggregatorJob], windows: Sequence[Window]) -> float:
    """Core-seconds that Slurm has allocated to these jobs in these windows, which do not overlap."""
    return sum(_overlap(job, window) * job.cores for job in jobs for window in windows)


def most_cores(jobs: Iterable[AggregatorJob], window: Window) -> int:
    """The most cores that these jobs have at the same time in a window."""
    known = [job for job in jobs if _overlap(job, window) > 0]
    starts = {max(window.begin, job.start) for job in known if job.start is not None}
    return max((sum(job.cores for job in known if _has(job, at)) for at in starts), default=0)


def steps_in(steps: Iterable[Mapping[str, Any]], windows: Sequence[Window]) -> list[float]:
    """The durations of the steps that begin and end in one of the windows, in seconds."""
    return [
        step["time"] - step["began"]
        for step in steps
        if any(each.begin <= step["began"] and step["time"] <= each.end for each in windows)
    ]


def job_loss(
    name: str, steps: Sequence[Mapping[str, Any]], together: Sequence[Window], alone: Sequence[Window]
) -> JobLoss:
    """What a job loses by its neighbours; `alone`: windows in which they are idle."""
    beside, without = steps_in(steps, together), steps_in(steps, alone)
    return JobLoss(name, median_step(beside), median_step(without), len(beside), len(without))


def neighbour_of_greedy(
    steps: Sequence[Mapping[str, Any]], before: Window, during: Window, after: Window
) -> GreedyNeighbour:
    """What a job loses while the greedy job is beside it, and once that has left."""
    medians = [median_step(steps_in(steps, [window])) for window in (before, during, after)]
    usual, greedy, calm = medians
    return GreedyNeighbour(usual, greedy, calm, _lost(usual, greedy), _lost(usual, calm))


def _lost(usual: float | None, now: float | None) -> float | None:
    return None if usual is None or now is None else 1 - usual / now


def median_step(durations: Sequence[float]) -> float | None:
    """The median; None: these are fewer than LEAST_STEPS."""
    return statistics.median(durations) if len(durations) >= LEAST_STEPS else None


def drains(events: Iterable[Mapping[str, Any]], jobs: Iterable[AggregatorJob]) -> list[Drain]:
    """The Aggregators that flexod has told to end, from its events in order of time, and their ends."""
    slurm_jobs: dict[str, int] = {}
    by_id = {job.job_id: job for job in jobs}
    found = []
    for event in events:
        if came := _CAME.search(event["text"]):
            slurm_jobs[came[1]] = int(came[2])
        elif (told := _TOLD.search(event["text"])) and (job := by_id.get(slurm_jobs.get(told[1], 0))):
            found.append(Drain(told[1], job.job_id, float(event["at"]), job.end, job.state))
    return found


def saved(shared_s: float, shared_steps: int, dedicated_s: float, dedicated_steps: int) -> float | None:
    """The part of the dedicated core-seconds that sharing saves for the same number of steps."""
    if not shared_steps or not dedicated_steps or dedicated_s <= 0:
        return None
    return 1 - (shared_s / shared_steps) / (dedicated_s / dedicated_steps)


def worst_loss(losses: Iterable[JobLoss]) -> float | None:
    """The largest loss; None: that of some job is not known."""
    found = [each.loss for each in losses]
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def _time(word: str) -> float | None:
    return float(word) if word.isdecimal() else None


def _overlap(job: AggregatorJob, window: Window) -> float:
    if job.start is None:
        return 0.0
    end = window.end if job.end is None else min(job.end, window.end)
    return max(0.0, end - max(job.start, window.begin))


def _has(job: AggregatorJob, at: float) -> bool:
    return job.start is not None and job.start <= at and (job.end is None or at < job.end)
