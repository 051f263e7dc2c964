"""Estimates of running times for policies, where a trace knows the truth and no scheduler can.

Lyra (section 4) depends on such estimates. Policies may be told the truth (an oracle, and every output says
so). Otherwise they are told facts that a cluster does know: how long similar jobs of the user ran, and the
time limit.
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
"""The number of recent jobs of a kind that count, as in flexod."""
_SAME_S: Final = 1e-6
"""Times that are nearer than this are one, because sums of times are not exact."""
_LEAST_S: Final = 1.0
"""The least total running time of a job that has outrun an estimate."""


class Mode(enum.Enum):
    """The sources of estimates."""

    ORACLE = "oracle"
    """The truth."""
    HISTORY = "history"
    """The median of the last like jobs: same user, application and GPUs; else the time limit; else the
    median of all that have ended; else nothing."""
    LIMIT = "limit"
    """The time limit, or nothing."""
    PROGRESS = "progress"
    """HISTORY at first. Once a job has run for a while, it reports its progress, which is exact."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """The mode of estimates, and the time after which a job's own report counts."""

    mode: Mode = Mode.HISTORY
    progress_after_s: float = 300.0
    """Training time at the requested size until a job can report its progress (PROGRESS)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The present belief about one job."""

    work: float | None
    """The remaining work, in the unit of the job's speed; None: not known."""
    source: Source
    good_for: float = math.inf
    """The work after which a new estimate is needed."""


class Estimator:
    """The history of one simulation. Mutable."""

    def __init__(self, settings: Estimates) -> None:
        self._settings = settings
        self._like: dict[tuple[str, str, Amount], deque[float]] = {}
        self._all: list[float] = []
        """The running times of all ended jobs, sorted."""

    def ended(self, job: TraceJob, work: float, speed: Speed | None) -> None:
        """Add `job`, which has done all of its `work`, to the history."""
        if self._settings.mode in (Mode.ORACLE, Mode.LIMIT):
            return
        seconds = work / _rate(job, speed)
        self._like.setdefault(_kind(job), deque(maxlen=_LIKE_JOBS)).append(seconds)
        insort(self._all, seconds)

    def estimate(self, job: TraceJob, left: float, done: float, speed: Speed | None) -> Estimate:
        """The estimate for a job that has `left` work left, in truth, and has done `done`."""
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
        """The estimated whole running time at the requested size, and its source."""
        like = self._like.get(_kind(job))
        if like:
            return statistics.median(like), Source.HISTORY
        if job.time_limit_s is not None or not self._all:
            return job.time_limit_s, Source.TIME_LIMIT
        return self._all[len(self._all) // 2], Source.HISTORY


def _not_outrun(believed_s: float, limit_s: float, done_s: float) -> float:
    """The estimate, raised for a job that has outrun it: to the time limit or, without one, by doubling."""
    outrun_s = done_s + _SAME_S
    if believed_s <= outrun_s < limit_s:
        return limit_s
    while believed_s <= outrun_s:
        believed_s = max(_LEAST_S, 2 * believed_s)
    return believed_s


def _kind(job: TraceJob) -> tuple[str, str, Amount]:
    return job.user, job.application, job.requested_workers * job.shape.gpus


def _rate(job: TraceJob, speed: Speed | None) -> float:
    """Work per second at the requested size."""
    workers = max(1, job.requested_workers)
    return float(workers) if speed is None else speed.rate(workers, 1)
