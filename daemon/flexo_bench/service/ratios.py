"""Ratios of medians with their intervals, and the goals by which they are judged. All functions are pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flexo_bench.runtime.results import Goal

CONFIDENCE = 0.95
RESAMPLES = 2000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two medians. `low`, `high`: its interval, with CONFIDENCE."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float], resamples: int = RESAMPLES) -> Ratio:
    """The median of `ours` over that of `theirs`, which were measured in the same rounds, in the same order.

    The interval is a bootstrap over rounds: what disturbs the machine in a round disturbs both.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} rounds of ours and {len(theirs)} of theirs; both have the same rounds")
    chance, rounds = random.Random(_SEED), range(len(ours))
    found = []
    for _ in range(resamples):
        drawn = chance.choices(rounds, k=len(ours))
        found.append(statistics.median(ours[i] for i in drawn) / statistics.median(theirs[i] for i in drawn))
    found.sort()
    outside = int(len(found) * (1 - CONFIDENCE) / 2)
    value = statistics.median(ours) / statistics.median(theirs)
    return Ratio(value, found[outside], found[-1 - outside])


def goal_line(goal: Goal) -> str:
    """The goal beside what was measured."""
    value = "-" if goal.value is None else f"{goal.value:.3g}"
    return f"goal {goal.name}: {value}, {goal.wanted}: {goal.verdict}"
