"""Learning rates that follow the global batch, where the user has asked for that (flexo run --scale-lr).

With the batch rule "grow", the global batch grows with the workers. When a job goes from a workers to b, all
rates of a script are multiplied by b/a, or by its square root. Schedulers go on from there: whatever they
compute from, such as the rate at the beginning, is multiplied, too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, MutableMapping
from typing import Any

VARIABLE = "FLEXO_SCALE_LR"
"""Environment variable: the rule. Unset or empty: rates stay as the script sets them."""

_IN_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The rates in an optimizer's parameter groups: PyTorch's own schedulers keep some of theirs there."""
_IN_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "eta_min", "_last_lr")
"""The rates in PyTorch's schedulers."""


class RateRule(enum.Enum):
    """How rates follow the number of workers."""

    LINEAR = "linear"
    SQRT = "sqrt"

    def factor(self, before: int, after: int) -> float:
        """The factor for rates when the workers change."""
        ratio = after / before
        return ratio if self is RateRule.LINEAR else math.sqrt(ratio)


def rule_in(text: str) -> RateRule | None:
    """The rule in the variable's value. Raises ValueError for an unknown one."""
    return RateRule(text) if text else None


def scale(optimizers: Iterable[Any], schedulers: Iterable[Any], factor: float) -> None:
    """Multiply all rates of these optimizers and schedulers."""
    if factor == 1.0:
        return
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            _multiply(group, _IN_GROUPS, factor)
    for scheduler in schedulers:
        _multiply(vars(scheduler), _IN_SCHEDULERS, factor)


class ScaledRates:
    """The rates of this worker: for how many workers they hold. Also a part of the state (StatePart)."""

    def __init__(self, rule: RateRule | None, workers: int) -> None:
        self._rule = rule
        self._workers = workers

    def follow(self, workers: int, optimizers: Iterable[Any], schedulers: Iterable[Any]) -> None:
        """Scale the rates for this number of workers."""
        if self._rule is not None:
            scale(optimizers, schedulers, self._rule.factor(self._workers, workers))
        self._workers = workers

    def own(self) -> Any:
        """See StatePart.own."""
        return self._workers

    def room(self) -> Any:
        """See StatePart.room."""
        return None

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        self._workers = theirs

    def settle(self) -> None:
        """See StatePart.settle."""


def _multiply(values: MutableMapping[str, Any], names: Iterable[str], factor: float) -> None:
    for name in names:
        value = values.get(name)
        if isinstance(value, list):
            values[name] = [each * factor for each in value]
        elif isinstance(value, int | float):
            values[name] = value * factor
        elif value is not None:  # a tensor, which a compiled step refers to
            value.mul_(factor)
