"""Medians, percentiles and their intervals, as reports of this package name them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_DRAWS, _SEED = 2000, 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of a sample, and its 95% interval by the bootstrap."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], part: int) -> float:
    """The `part`-th percentile; NaN without values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


def estimate(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> Estimate:
    """`of(values)`, and how far it would vary in other samples like this one."""
    if not values:
        return Estimate(*[float("nan")] * 3)
    chance = random.Random(_SEED)
    drawn = sorted(of(chance.choices(values, k=len(values))) for _ in range(_DRAWS))
    outside = _DRAWS * 25 // 1000
    return Estimate(of(values), drawn[outside], drawn[-1 - outside])


def difference(with_it: Sequence[float], without: Sequence[float]) -> Estimate:
    """The difference of the means, in parts of the mean of `without`."""

    def of(above: Sequence[float], below: Sequence[float]) -> float:
        return statistics.fmean(above) / statistics.fmean(below) - 1

    chance = random.Random(_SEED)
    drawn = sorted(
        of(chance.choices(with_it, k=len(with_it)), chance.choices(without, k=len(without)))
        for _ in range(_DRAWS)
    )
    outside = _DRAWS * 25 // 1000
    return Estimate(of(with_it, without), drawn[outside], drawn[-1 - outside])
