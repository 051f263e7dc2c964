"""A job's knowledge of its own speed while it trains: observations in, a Speed out."""

from __future__ import annotations

from functools import lru_cache

from flexo.scalability.goodput import GoodputSpeed
from flexo.scalability.gradient_noise import GradientStatistics
from flexo.scalability.local_batch import BatchLimits
from flexo.scalability.step_table import StepTable
from flexo.scalability.step_times import Observation, Setting, StepTime


class Learner:
    """The observations of one job, and the speed that follows from them. Mutable."""

    def __init__(self, limits: BatchLimits, batch: int = 0, caution: float = 0.0) -> None:
        """`batch`: the only aggregate batch that the job accepts; 0: all within the limits.

        `caution`: number of standard errors by which rates that are not known are lowered.
        """
        self._limits = limits
        self._caution = caution
        self._batch = batch
        self._seen: dict[Setting, StepTime] = {}
        self._gradients: GradientStatistics | None = None
        self._steps: StepTable | None = None
        """The step times by all observations; None: not yet calculated."""
        self._speed: GoodputSpeed | None = None

    def saw_step(self, setting: Setting, time: StepTime) -> bool:
        """Record that a step took `time`, in place of the setting's earlier time. Returns whether that is
        new."""
        if self._seen.get(setting) == time:
            return False
        self._seen[setting] = time
        self._steps = self._speed = None
        return True

    def saw_gradients(self, gradients: GradientStatistics) -> None:
        """Record the present statistics of gradients."""
        if gradients != self._gradients:
            self._gradients = gradients
            self._speed = None

    def speed(self) -> GoodputSpeed | None:
        """The speed by all observations; None before the first step and the first statistics of gradients."""
        if not self._seen or self._gradients is None:
            return None
        if self._steps is None:
            seen = tuple(Observation(setting, self._seen[setting]) for setting in sorted(self._seen))
            self._steps = _table(seen, self._limits, self._batch)
        if self._speed is None:
            self._speed = _speed(self._steps, self._gradients, self._caution)
        return self._speed

    def choose_batch(self, workers: int, nodes: int) -> int:
        """The aggregate batch to train with: the best known one; before the first steps, the only or smallest
        one."""
        speed = self.speed()
        best = speed.best_batch(workers, nodes) if speed is not None else 0
        return best or self._batch or self._limits.smallest(workers)


# Jobs of one application see the same as each other. Calculated values are kept in the objects themselves,
# so that a simulation takes half as long if such jobs share them.


@lru_cache(maxsize=1 << 12)
def _table(seen: tuple[Observation, ...], limits: BatchLimits, batch: int) -> StepTable:
    return StepTable(seen, limits, batch)


@lru_cache(maxsize=1 << 13)
def _speed(steps: StepTable, gradients: GradientStatistics, caution: float) -> GoodputSpeed:
    return GoodputSpeed(steps, gradients, caution)
