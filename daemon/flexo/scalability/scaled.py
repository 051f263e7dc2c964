"""The speed on a GPU type on which a job has not trained yet, by its speed on another one."""

from __future__ import annotations

from dataclasses import dataclass

from flexo.model.measured import Speed


@dataclass(frozen=True, slots=True)
class ScaledSpeed:
    """A speed times a constant factor (implements Speed)."""

    speed: Speed | None
    """The speed on the other type; None: not known, and taken as linear in the workers."""
    factor: float
    """How fast one worker trains on this type, relative to the type of `speed`."""

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        """Work per second, as in `Speed.rate`."""
        known = float(workers) if self.speed is None else self.speed.rate(workers, nodes, batch)
        return self.factor * known

    def best_batch(self, workers: int, nodes: int) -> int:
        """The best aggregate batch, as in `Speed.best_batch`."""
        return 0 if self.speed is None else self.speed.best_batch(workers, nodes)
