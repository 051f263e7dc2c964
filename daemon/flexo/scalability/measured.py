"""Speed as a job's leader measured it (`flexo profile`), extended with caution beyond the measured sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from flexo.model.measured import ScalingPoint
from flexo.scalability.table import TableSpeed
from flexo.scalability.uncertainty import of_size


def speed_of(points: Iterable[ScalingPoint]) -> MeasuredSpeed | None:
    """The speed in a profile; None if the profile has none. If a size was measured twice, the later one
    counts."""
    latest = {
        point.workers: point.samples_per_s
        for point in sorted(points, key=lambda point: point.measured_at)
        if point.workers > 0 and point.samples_per_s > 0
    }
    return MeasuredSpeed(TableSpeed.of(latest)) if latest else None


@dataclass(frozen=True)
class MeasuredSpeed:
    """Samples per second by the number of workers (implements Speed).

    Up to the largest measured size, rates are those of the table. Beyond it, throughput is assumed to grow as
    between the two largest sizes, by the same factor for each doubling. With one measured size, growth is
    assumed to be linear. This estimate is lowered by one standard error, so that GPUs go first to jobs that
    are known to use them.
    """

    table: TableSpeed

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        """Samples a second; neither nodes nor batch matter."""
        largest = self.table.sizes[-1]
        if workers <= largest:
            return self.table.rate(workers)
        expected = self.table.rates[-1] * math.pow(workers / largest, self._growth)
        return max(self.table.rates[-1], expected / (1 + self.error(workers, nodes)))

    def best_batch(self, workers: int, nodes: int) -> int:
        """0: a profile is of the script's own batch, and of no other."""
        return 0

    def error(self, workers: int, nodes: int) -> float:
        """The relative standard error of the expected rate; 0 at a measured size."""
        return of_size(workers, self.table.sizes)

    @cached_property
    def _growth(self) -> float:
        """Exponent of throughput in the number of workers. 1: growth is linear; 0: more workers gain
        nothing."""
        last = list(zip(self.table.sizes, self.table.rates, strict=True))[-2:]
        for (few, low), (many, high) in pairwise(last):
            return min(1.0, max(0.0, (math.log(high) - math.log(low)) / math.log(many / few)))
        return 1.0
