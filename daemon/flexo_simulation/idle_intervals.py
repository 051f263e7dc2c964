"""Idle intervals of GPUs: the time from the end of a GPU's job to the start of its next one.

Wu et al., "Elastic deep learning in multi-tenant GPU cluster" (Amoeba), section 3.2 and figure 2a. An
accounting tells how many GPUs of a node were in use, and not which. So there are two readings, the two ends
of what can have been: see `Order`. Both have the same number of intervals and the same idle time.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MINUTES: Final = (1, 5, 15, 60)
"""Lengths for which the share of longer intervals is told."""
_PERCENT: Final = np.arange(101)


class Order(enum.Enum):
    """Which of a node's idle GPUs the next job is taken to get."""

    LAST = "freed last, used first"
    """Intervals differ most: one lasts while at least so many GPUs of the node are idle."""
    FIRST = "freed first, used first"
    """Intervals differ least."""


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs of one node that a job held. Times are in seconds."""

    begin: float
    end: float
    gpus: int | None
    """None: nobody can tell how many."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One idle interval of each of `gpus` GPUs."""

    begin: float
    length_s: float
    gpus: int
    complete: bool
    """Whether a job ended at its begin, and one started at its end; else it is cut off: its real length is
    not known, but for being no shorter."""


def peak(holds: Iterable[Hold]) -> int:
    """The most GPUs in use at one time, as far as their number is known."""
    used = most = 0
    for change in _changes(holds):
        used += change.used
        most = max(most, used)
    return most


def unknown_s(holds: Iterable[Hold], span: tuple[float, float]) -> float:
    """Seconds of `span` in which nobody can tell how many GPUs of the node were in use."""
    begin, end = span
    total, reached = 0.0, begin
    for hold in sorted((h for h in holds if h.gpus is None), key=lambda h: h.begin):
        total += max(0.0, min(hold.end, end) - max(hold.begin, reached))
        reached = max(reached, hold.end)
    return total


def intervals(
    holds: Iterable[Hold], gpus: int, span: tuple[float, float], order: Order
) -> Iterator[Interval]:
    """The idle intervals of a node of `gpus` GPUs, at least as many as the `peak` of its holds.

    The ends of `span`, and of times in which nobody can tell, cut intervals off. A job that begins in the
    very second in which another one ends leaves no interval.
    """
    begin, end = span
    used = unknown = 0
    idle: deque[_Idle] = deque()
    changes = deque(_changes(holds))
    while changes and changes[0].at < begin:
        change = changes.popleft()
        used, unknown = used + change.used, unknown + change.unknown
    if not unknown:
        idle.append(_Idle(begin, gpus - used, complete=False))
    for change in changes:
        if change.at > end:
            break
        was_unknown = unknown
        used, unknown = used + change.used, unknown + change.unknown
        if not was_unknown and not unknown:
            if change.used < 0:
                idle.append(_Idle(change.at, -change.used, complete=True))
            yield from _taken(idle, change.at, change.used, order)
        elif not was_unknown:
            yield from _cut_off(idle, change.at)
        elif not unknown:
            idle.append(_Idle(change.at, gpus - used, complete=False))
    yield from _cut_off(idle, end)


@dataclass(frozen=True, slots=True)
class _Change:
    """All that happens to a node's GPUs at one time."""

    at: float
    used: int
    """GPUs more in use; below 0: fewer."""
    unknown: int
    """Holds more of an unknown number of GPUs; below 0: fewer."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """GPUs that are idle since one time."""

    since: float
    gpus: int
    complete: bool


def _changes(holds: Iterable[Hold]) -> list[_Change]:
    found: dict[float, tuple[int, int]] = {}
    for hold in holds:
        for at, sign in ((hold.begin, 1), (hold.end, -1)):
            used, unknown = found.get(at, (0, 0))
            if hold.gpus is None:
                found[at] = used, unknown + sign
            else:
                found[at] = used + sign * hold.gpus, unknown
    return [_Change(at, *found[at]) for at in sorted(found)]


def _taken(idle: deque[_Idle], at: float, gpus: int, order: Order) -> Iterator[Interval]:
    """Take `gpus` of the idle GPUs away; 0 or less: none."""
    while gpus > 0:
        each = idle.pop() if order is Order.LAST else idle.popleft()
        if (more := each.gpus - gpus) > 0:
            rest = _Idle(each.since, more, each.complete)
            idle.append(rest) if order is Order.LAST else idle.appendleft(rest)
        yield from _interval(each, at, min(gpus, each.gpus), each.complete)
        gpus -= each.gpus


def _cut_off(idle: deque[_Idle], at: float) -> Iterator[Interval]:
    while idle:
        each = idle.popleft()
        yield from _interval(each, at, each.gpus, complete=False)


def _interval(idle: _Idle, until: float, gpus: int, complete: bool) -> Iterator[Interval]:
    if until > idle.since and gpus:
        yield Interval(idle.since, until - idle.since, gpus, complete)


@dataclass(frozen=True, slots=True)
class Longer:
    """The share of the idle GPU time that lies in intervals longer than `minutes`.

    The two shares differ by what is cut off: an interval of which less is seen may have been longer.
    """

    minutes: float
    at_least: float
    at_most: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """The lengths of idle intervals of single GPUs, under one reading."""

    order: Order
    complete: int
    """Number of intervals of which begin and end are known; the percentiles are of these."""
    cut_off: int
    percentiles_s: tuple[float, ...]
    """0th to 100th percentile of the lengths of complete intervals; (): there is none."""
    time_percentiles_s: tuple[float, ...]
    """The same, with each interval counted by its length, and those that are cut off, too; (): no GPU was
    idle."""
    longer: tuple[Longer, ...]
    """For each of MINUTES; (): no GPU was idle."""

    @property
    def intervals(self) -> int:
        """Number of all intervals."""
        return self.complete + self.cut_off


def distribution(found: Sequence[Interval], order: Order) -> Distribution:
    """The distribution of `found`, each interval counted once for each of its GPUs."""
    lengths = np.array([each.length_s for each in found], dtype=float)
    gpus = np.array([each.gpus for each in found], dtype=float)
    complete = np.array([each.complete for each in found], dtype=bool)
    return Distribution(
        order=order,
        complete=int(gpus[complete].sum()),
        cut_off=int(gpus[~complete].sum()),
        percentiles_s=_percentiles(lengths[complete], gpus[complete]),
        time_percentiles_s=_percentiles(lengths, lengths * gpus),
        longer=tuple(_longer(minutes, lengths, gpus, complete) for minutes in MINUTES if len(found)),
    )


def _percentiles(values: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, ...]:
    """For each percent, the smallest value so that at least this part of the weight is not above it."""
    if not len(values):
        return ()
    by_value = np.argsort(values, kind="stable")
    below = np.cumsum(weights[by_value])
    places = np.searchsorted(below, _PERCENT / 100 * below[-1] * (1 - 1e-12))
    return tuple(float(value) for value in values[by_value][np.minimum(places, len(values) - 1)])


def _longer(
    minutes: float, lengths: NDArray[np.float64], gpus: NDArray[np.float64], complete: NDArray[np.bool_]
) -> Longer:
    time, longer = lengths * gpus, lengths > 60 * minutes
    at_least = time[longer].sum() / time.sum()
    return Longer(minutes, float(at_least), float(at_least + time[~longer & ~complete].sum() / time.sum()))
