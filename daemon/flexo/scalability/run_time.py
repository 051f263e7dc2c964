"""A job's running time by batch, so that its user can rule out batches that take too long.

Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", section V-A: the analyzer's estimate of
a step, t_iter(b, k), extends to the whole job. A job does the same work with any batch, so that the time is
the work divided by the speed T(b, k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from flexo.model.measured import Source, Speed
from flexo.model.ranges import Range

MOST_BATCHES: Final = 8
"""The most batches of a forecast."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The rest of a job's training, as a function of batch and workers."""

    speed: Speed
    """The speed by batch."""
    work: float
    """The work that is left, in the unit of `speed.rate`."""
    batch: Range
    """The aggregate batches that the job accepts."""
    source: Source
    """The source of `work`."""

    def seconds(self, batch: int, workers: int) -> float:
        """The seconds of the rest with this aggregate batch throughout; infinite where it cannot run.

        As in the paper, the nodes of the workers do not matter. The batch need not be one that the job
        accepts.
        """
        rate = self.speed.rate(workers, 1, batch)
        return self.work / rate if rate > 0 else math.inf

    def batches(self) -> tuple[int, ...]:
        """The batches of a forecast: both ends of the range, and at most six between them in equal ratios."""
        low, high = self.batch.min, self.batch.max
        steps = min(MOST_BATCHES - 1, max(1, math.ceil(math.log2(high / low))))
        ratio = high / low
        return tuple(sorted({round(low * ratio ** (step / steps)) for step in range(steps + 1)}))

    def fewest(self, batch: int, workers: Range) -> int:
        """The fewest of these workers with which the batch runs: the worst case that a user accepts with it
        (section V-A). 0: it runs with none of them."""
        several = range(workers.min, workers.max + 1)
        return next((count for count in several if self.speed.rate(count, 1, batch) > 0), 0)
