"""How long policies believe that jobs will run, where a trace knows it and no scheduler can.

Lyra (section 4) stands or falls with such estimates. The truth may be told (an oracle, and every output says
so) or replaced by what a cluster does know: how long its user's like jobs ran, and the time limit.
"""

from __future__ import annotations

import enum
import math
import statistics
from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import Final

from flexo.model.measured import Source, Speed
from flexo_protos.resources import Amount
from flexo_simulation.workload import TraceJob

_LIKE_JOBS: Final = 10
"""The last so many of a kind are gone by, as flexod does."""
_SAME_S: Final = 1e-6
"""Times that are nearer are one: sums of times are not exact."""
_LEAST_S: Final = 1.0
"""What a job that has outrun an estimate is taken to run at least, in all."""


class Mode(enum.Enum):
    """What estimates are made of."""

    ORACLE = "oracle"
    """The truth."""
    HISTORY = "history"
    """The median of the last like jobs: same user, application and GPUs; else the time limit; else the
    median of all that have ended; else nothing."""
    LIMIT = "limit"
    """The time limit, or nothing."""
    PROGRESS = "progress"
    """As HISTORY at first; once a job has run for a while it has told how far it is, and that is exact."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Which, and from when on a job's own word counts."""

    mode: Mode = Mode.HISTORY
    progress_after_s: float = 300.0
    """For PROGRESS: training time at the requested size until a job can tell how far it is."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is believed of one job now."""

    work: float | None
    """What is left, in the unit of the job's speed; None: not known."""
    source: Source
    good_for: float = math.inf
    """After so much more work it has to be estimated anew."""


class Estimator:
    """The history of one simulation. Mutable."""

    def __init__(self, settings: Estimates) -> None:
        self._settings = settings
        self._like: dict[tuple[str, str, Amount], deque[float]] = {}
        self._all: list[float] = []
        """Sorted."""

    def ended(self, job: TraceJob, work: float, speed: Speed | None) -> None:
        """`job` has done all of its `work`: from now on it is history."""
        if self._settings.mode in (Mode.ORACLE, Mode.LIMIT):
            return
        seconds = work / _rate(job, speed)
        self._like.setdefault(_kind(job), deque(maxlen=_LIKE_JOBS)).append(seconds)
        insort(self._all, seconds)

    def estimate(self, job: TraceJob, left: float, done: float, speed: Speed | None) -> Estimate:
        """What to believe of a job of which `left` is left, in truth, and that has done `done`."""
        mode = self._settings.mode
        if mode is Mode.ORACLE:
            return Estimate(left, Source.ORACLE)
        rate = _rate(job, speed)
        tells_at = self._settings.progress_after_s * rate if mode is Mode.PROGRESS else math.inf
        if done + _SAME_S * rate >= tells_at:
            return Estimate(left, Source.PROGRESS)
        seconds, source = self._seconds(job)
        if seconds is None:
            return Estimate(None, source, tells_at - done)
        believed = rate * _not_outrun(seconds, job.time_limit_s or 0, done / rate)
        return Estimate(believed - done, source, min(believed, tells_at) - done)

    def _seconds(self, job: TraceJob) -> tuple[float | None, Source]:
        """The whole running time at the requested size."""
        like = self._like.get(_kind(job))
        if like:
            return statistics.median(like), Source.HISTORY
        if job.time_limit_s is not None or not self._all:
            return job.time_limit_s, Source.TIME_LIMIT
        return self._all[len(self._all) // 2], Source.HISTORY


def _not_outrun(believed_s: float, limit_s: float, done_s: float) -> float:
    """A job that is not over when it should be will run to its limit, or, without one, twice as long."""
    outrun_s = done_s + _SAME_S
    if believed_s <= outrun_s < limit_s:
        return limit_s
    while believed_s <= outrun_s:
        believed_s = max(_LEAST_S, 2 * believed_s)
    return believed_s


def _kind(job: TraceJob) -> tuple[str, str, Amount]:
    return job.user, job.application, job.requested_workers * job.shape.gpus


def _rate(job: TraceJob, speed: Speed | None) -> float:
    """Work a second at the requested size."""
    workers = max(1, job.requested_workers)
    return float(workers) if speed is None else speed.rate(workers, 1)
