"""Pure: the pause that a migration costs a job, from the times at which its workers ended their steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Migration:
    """What moved, from `began` on: all tensors of the job. Times are seconds since the epoch.

    `until`: when the job has trained on for a while. The time from `calm` to `began` was without a migration.
    """

    calm: float
    began: float
    until: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one migration, in seconds.

    `pause_s`: the longest gap between two steps of a worker, less its median gap. `calm_s`: the same in the
    time before. `step_s`: the median gap.
    """

    pause_s: float
    calm_s: float
    step_s: float


def cost_of(migration: Migration, workers: Sequence[Sequence[float]]) -> Cost:
    """The cost for the worker that waited longest. `workers`: per worker, when its steps ended.

    Raises ValueError if a worker has taken no two steps in one of the times.
    """
    costs = [_cost(migration, ends) for ends in workers]
    return Cost(
        max(cost.pause_s for cost in costs),
        max(cost.calm_s for cost in costs),
        max(cost.step_s for cost in costs),
    )


def _cost(migration: Migration, ends: Sequence[float]) -> Cost:
    gaps = list(pairwise(ends))
    calm = [b - a for a, b in gaps if a >= migration.calm and b <= migration.began]
    moved = [b - a for a, b in gaps if b > migration.began and a < migration.until]
    if not calm or not moved:
        raise ValueError(f"{len(calm)} steps before a migration and {len(moved)} after it; each needs one")
    usual = statistics.median(calm)
    return Cost(max(moved) - usual, max(calm) - usual, usual)
