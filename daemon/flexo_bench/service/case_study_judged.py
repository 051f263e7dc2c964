"""Pure: the speed of a job in the course of a case study, from the times at which its steps ended."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Stage:
    """The time between two changes of the pool. Times are seconds since the epoch."""

    name: str
    asked: float
    """When pMaster began to make the change before it."""
    since: float
    """When all partitions were in their places."""
    until: float
    aggregators: int


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a trace. `at_s`: since its origin. `speed`: over that of the job alone."""

    at_s: float
    speed: float


def loss_in(stage: Stage, ends: Sequence[float], alone_s: float) -> float:
    """The part of its speed that a job loses in a stage. `alone_s`: its mean step alone, in seconds.

    Raises ValueError if no two of its steps ended in the stage.
    """
    gaps = [
        after - before for before, after in pairwise(ends) if stage.since <= before and after <= stage.until
    ]
    if not gaps:
        raise ValueError(f"no two steps ended in stage {stage.name}; make it longer")
    return 1 - alone_s / statistics.mean(gaps)


def trace(ends: Sequence[float], origin: float, alone_s: float, over_s: float = 1.0) -> list[Point]:
    """The speed in each span of `over_s` seconds from the origin on; not those without a step."""
    spans: dict[int, list[float]] = {}
    for before, after in pairwise(ends):
        if after >= origin:
            spans.setdefault(int((after - origin) / over_s), []).append(after - before)
    return [Point((span + 0.5) * over_s, alone_s / statistics.mean(gaps)) for span, gaps in spans.items()]
