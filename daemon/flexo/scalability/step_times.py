"""The duration of one step of training, and its observations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of one forward and backward pass with the exchange of gradients."""

    step_s: float
    sync_s: float
    """The part of `step_s` that the exchange adds; the rest is the pass without it."""

    @property
    def compute_s(self) -> float:
        """The seconds of a pass whose gradients are kept for a later step (gradient accumulation)."""
        return self.step_s - self.sync_s


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The workers, nodes and samples of a step."""

    workers: int
    nodes: int
    local: int
    """Samples of one pass on one worker."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A step time that was observed in training."""

    setting: Setting
    time: StepTime
