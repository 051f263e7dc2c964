"""Reads a log of Sia's simulator (`multi_simulator.py --output`): what it gave each job in each round."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from flexo_simulation.formats.errors import BadTrace


@dataclass(frozen=True, slots=True)
class Given:
    """What Sia gives one job from one round on."""

    gpu_type: str
    workers: tuple[int, ...]
    """The GPUs on each of its nodes; empty: the job waits."""
    batch: int
    """Samples of all its workers in one step."""


@dataclass(frozen=True, slots=True)
class SiaLog:
    """The decisions of one simulation, and its results."""

    rounds: Mapping[float, Mapping[str, Given]]
    """Per time of a decision, in seconds: what each job has that is not done, by the job's name."""
    jct_s: Mapping[str, float]
    """Per job that was done: seconds from its submission to its completion."""

    @property
    def mean_jct_s(self) -> float:
        """Mean completion time of all jobs that were done."""
        return sum(self.jct_s.values()) / len(self.jct_s)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job in a line of the log, in its words."""

    name: str
    cluster: str | None
    placement: tuple[int, ...]
    batch_size: int
    submission_time: float
    completion_time: float | None


@dataclass(frozen=True, slots=True)
class _Round:
    """A line of the log, in its words."""

    timestamp: float
    submitted_jobs: tuple[_Job, ...]


_ROUND: Final = TypeAdapter(_Round)


def read(path: Path) -> SiaLog:
    """Read a log, one JSON object a line. Raises BadTrace with the line that makes no sense."""
    rounds: dict[float, Mapping[str, Given]] = {}
    jct_s: dict[str, float] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                each = _round(line, f"{path}:{number}")
                rounds[each.timestamp] = {
                    job.name: Given(job.cluster or "", job.placement, job.batch_size)
                    for job in each.submitted_jobs
                    if job.completion_time is None
                }
                for job in each.submitted_jobs:
                    if job.completion_time is not None:
                        jct_s[job.name] = job.completion_time - job.submission_time
    except OSError as error:
        raise BadTrace((f"{path}: cannot be read: {error.strerror or error}",)) from error
    if not jct_s:
        raise BadTrace((f"{path}: no job is done in it",))
    return SiaLog(rounds, jct_s)


def read_mean(path: Path) -> float:
    """The mean completion time in seconds, by the last line alone. Raises BadTrace."""
    try:
        with path.open("rb") as file:
            ((number, last),) = deque(enumerate(file, start=1), maxlen=1) or [(0, b"")]
    except OSError as error:
        raise BadTrace((f"{path}: cannot be read: {error.strerror or error}",)) from error
    jobs = _round(last, f"{path}:{number}").submitted_jobs
    jct_s = [job.completion_time - job.submission_time for job in jobs if job.completion_time is not None]
    if not jct_s or len(jct_s) < len(jobs):
        raise BadTrace((f"{path}: {len(jct_s)} of {len(jobs)} jobs are done in it",))
    return sum(jct_s) / len(jct_s)


def _round(line: bytes, where: str) -> _Round:
    try:
        return _ROUND.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        raise BadTrace((f"{where}: {field}: {first['msg']}",)) from error
