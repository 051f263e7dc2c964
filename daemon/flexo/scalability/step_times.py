"""What one step of training takes, and what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """One forward and backward pass with the exchange of gradients, seconds."""

    step_s: float
    sync_s: float
    """Of `step_s`, what the exchange adds: the rest is what the pass takes without it."""

    @property
    def compute_s(self) -> float:
        """A pass whose gradients are kept for a later step (gradient accumulation)."""
        return self.step_s - self.sync_s


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """With what a step was taken."""

    workers: int
    nodes: int
    local: int
    """Samples of one pass on one worker."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A step time that was seen in training."""

    setting: Setting
    time: StepTime
