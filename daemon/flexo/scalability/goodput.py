"""Speed as goodput: steps per second, each weighted by what its batch is worth (Pollux, section 3.1, eq. 5
and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flexo.scalability.gradient_noise import GradientStatistics
from flexo.scalability.step_table import TABLE_WORKERS, Array, Splits, StepTable


@dataclass(frozen=True)
class GoodputSpeed:
    """A job's speed by its own observations (implements Speed). The unit of work is a step of the initial
    batch.

    `nodes` counts only as one or several.
    """

    steps: StepTable
    gradients: GradientStatistics
    caution: float = 0.0
    """Number of standard errors by which rates are lowered (docs/explanation/scalability.md). 0: as in
    Pollux, no lowering."""

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        """Steps of the initial batch a second; 0 where the job accepts no batch for `workers`."""
        return self._best(workers, nodes, batch)[0]

    def best_batch(self, workers: int, nodes: int) -> int:
        """The aggregate batch at which `rate` is best; 0 where there is none."""
        return self._best(workers, nodes, 0)[1]

    def error(self, workers: int, nodes: int) -> float:
        """The relative standard error of the rate that is expected of a placement."""
        return self.steps.model.error(workers, nodes > 1)

    def _best(self, workers: int, nodes: int, batch: int) -> tuple[float, int]:
        if not 1 <= nodes <= workers <= self.steps.limits.most_workers:
            return 0.0, 0
        if batch or workers > TABLE_WORKERS:
            splits = Splits.of(np.array([workers]), self.steps.limits, batch or self.steps.batch)
            found = self._look_up(splits, self.steps.step_s(splits, nodes > 1))[0]
        else:
            found = (self._between if nodes > 1 else self._within)[workers - 1]
        if not self.caution:
            return found
        return found[0] / (1 + self.caution * self.error(workers, nodes)), found[1]

    @cached_property
    def _within(self) -> list[tuple[float, int]]:
        return self._look_up(self.steps.splits, self.steps.within)

    @cached_property
    def _between(self) -> list[tuple[float, int]]:
        return self._look_up(self.steps.splits, self.steps.between)

    def _look_up(self, splits: Splits, step_s: Array) -> list[tuple[float, int]]:
        """The best rate and its batch, for each number of workers of `splits`."""
        rates = self.gradients.gains(splits.scale) / step_s
        best = np.argmax(rates, axis=1)
        rows = np.arange(len(best))
        found = zip(rates[rows, best].tolist(), splits.batch[rows, best].tolist(), strict=True)
        return [(rate, int(batch) if rate > 0 else 0) for rate, batch in found]
