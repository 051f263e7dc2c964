"""Speed as a job's leader measured it (`flexo profile`), with caution beyond what it measured."""

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
    """What a profile tells; None where it has no speed. Of a size measured twice, the later one counts."""
    latest = {
        point.workers: point.samples_per_s
        for point in sorted(points, key=lambda point: point.measured_at)
        if point.workers > 0 and point.samples_per_s > 0
    }
    return MeasuredSpeed(TableSpeed.of(latest)) if latest else None


@dataclass(frozen=True)
class MeasuredSpeed:
    """Samples a second by the number of workers (implements Speed).

    Between measured sizes as in the table. Beyond the largest, throughput is taken to go on as between the
    two largest, so much for each doubling (as if nothing were lost, where only one was measured), and then
    lowered by one standard error: GPUs go first where it is known that they help.
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
        """0: a profile is of the script's own batch."""
        return 0

    def error(self, workers: int, nodes: int) -> float:
        """Relative standard error of what is expected; 0 where it was measured."""
        return of_size(workers, self.table.sizes)

    @cached_property
    def _growth(self) -> float:
        """Exponent of throughput in the number of workers: 1 nothing is lost, 0 nothing is gained."""
        last = list(zip(self.table.sizes, self.table.rates, strict=True))[-2:]
        for (few, low), (many, high) in pairwise(last):
            return min(1.0, max(0.0, math.log(high / low) / math.log(many / few)))
        return 1.0
