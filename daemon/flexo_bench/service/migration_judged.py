"""Pure: the pause that a migration costs a job, from the times at which its workers ended their steps.

On a busy machine the longest of a few mini-batches is long without a migration, too. So the longest
mini-batch of a migration is compared with the longest of as many mini-batches of the same job just before.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Migration:
    """What moved: all tensors of the job, or all of its sums. Times are seconds since the epoch.

    From `began`, when it was told, to `until`, when all had moved. The time from `calm` to `began` was
    without a migration.
    """

    calm: float
    began: float
    until: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one migration, in seconds.

    `pause_s`: the longest gap between two steps of a worker, less its median gap before. The gaps of the
    migration and the next one count. `calm_s`: the same of as many gaps before the migration, as the median
    over all such sequences of gaps. `step_s`: the median gap.
    """

    pause_s: float
    calm_s: float
    step_s: float

    @property
    def added_s(self) -> float:
        """What the migration adds to the longest gap."""
        return self.pause_s - self.calm_s


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
    after = [(a, b - a) for a, b in gaps if b > migration.began]
    moved = [gap for a, gap in after if a < migration.until]
    moved += [gap for a, gap in after if a >= migration.until][:1]
    if not calm or not moved:
        raise ValueError(f"{len(calm)} steps before a migration and {len(moved)} after it; each needs one")
    usual = statistics.median(calm)
    count = min(len(moved), len(calm))
    longest = [max(calm[first : first + count]) for first in range(len(calm) - count + 1)]
    return Cost(max(moved) - usual, statistics.median(longest) - usual, usual)
