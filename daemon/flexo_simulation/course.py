"""GPUs in use and GPUs waited for over the time of a simulation, from the stories of its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexo_simulation.records import End, JobRecord

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Course:
    """Means over equal stretches of time; `edges` has one number more than the others."""

    edges: Numbers
    """Seconds since the workload's beginning."""
    used: Numbers
    """GPUs that jobs hold."""
    wanted: Numbers
    """GPUs that waiting jobs ask for."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which nothing changed for a job; with no workers it waited."""

    begin: float
    end: float
    workers: int


def course_of(records: Sequence[JobRecord], stretches: int, span: tuple[float, float]) -> Course:
    """The course over `span`, in this number of stretches."""
    begin, end = span
    edges = np.linspace(begin, end, stretches + 1)
    used: list[tuple[float, float, float]] = []
    wanted: list[tuple[float, float, float]] = []
    for record in records:
        asked = record.job.requested_workers
        for each in stretches_of(record, end):
            kind, workers = (used, each.workers) if each.workers else (wanted, asked)
            kind.append((each.begin, each.end, workers * float(record.job.shape.gpus)))
    return Course(edges, _means(used, edges), _means(wanted, edges))


def span_of(records: Sequence[JobRecord]) -> tuple[float, float]:
    """The first submission and the last end of the jobs that were taken up; at least an hour if there is
    none."""
    taken_up = [record for record in records if record.end is not End.NEVER_FITS]
    begin = min((record.job.submitted_at for record in taken_up), default=0.0)
    end = max((record.ended_at for record in taken_up if record.ended_at is not None), default=begin)
    return begin, end if end > begin else begin + 3600.0


def stretches_of(record: JobRecord, until: float) -> Iterator[Stretch]:
    """The stretches of a job's life, waiting included, up to its end or to `until`. A job that never fits has
    none."""
    if record.end is End.NEVER_FITS:
        return
    end = until if record.ended_at is None else record.ended_at
    at, workers = record.job.submitted_at, 0
    for held in record.timeline:
        if held.at > at:
            yield Stretch(at, held.at, workers)
        at, workers = held.at, held.workers
    if end > at:
        yield Stretch(at, end, workers)


def _means(pieces: Sequence[tuple[float, float, float]], edges: Numbers) -> Numbers:
    """The mean, between each two edges, of the sum of `pieces`. A piece is a value from its begin to its
    end."""
    if not pieces:
        return np.zeros(len(edges) - 1)
    table = np.array(pieces, dtype=float)
    times = np.concatenate([table[:, 0], table[:, 1]])
    changes = np.concatenate([table[:, 2], -table[:, 2]])
    order = np.argsort(times, kind="stable")
    times, levels = times[order], np.cumsum(changes[order])
    area = np.concatenate([[0.0], np.cumsum(levels[:-1] * np.diff(times))])
    means: Numbers = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return np.maximum(means, 0.0)
