"""How fast something grows: a line by least squares, and the upper 95% bound of its slope. Pure.

The bound is what was shown, not only what was seen: few or noisy samples have a high one, so a run that is
too short to tell seldom passes. Samples are taken to be independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
FEWEST = 4
"""Samples. With fewer, one of them decides."""
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Slope:
    """Of one series. `None`: there were too few samples."""

    per_hour: float | None
    upper95: float | None
    """One-sided: with a probability of 95%, the true slope is lower."""
    bound: float
    """What `upper95` may be at most."""
    samples: int
    mean: float | None = None
    """Of the samples."""
    noise: float | None = None
    """Their standard deviation around the line."""

    @property
    def flat(self) -> bool:
        """Shown to be within the bound."""
        return self.upper95 is not None and self.upper95 <= self.bound


def fit(at_s: Sequence[float], values: Sequence[float], bound: float, *, relative: bool = False) -> Slope:
    """The slope of `values` over times in seconds; `relative`: in % of their mean, `bound` likewise."""
    count = len(values)
    if count < FEWEST or len(set(at_s)) < FEWEST:
        return Slope(None, None, bound, count)
    hours, seen = np.asarray(at_s, dtype=float) / 3600.0, np.asarray(values, dtype=float)
    mean = float(seen.mean())
    if relative and mean:
        seen = seen / mean * 100.0
    hours, seen = hours - hours.mean(), seen - seen.mean()
    spread = float(hours @ hours)
    per_hour = float(hours @ seen) / spread
    residuals = seen - per_hour * hours
    noise = math.sqrt(float(residuals @ residuals) / (count - 2))
    upper = per_hour + _quantile(count) * noise / math.sqrt(spread)
    return Slope(per_hour, upper, bound, count, mean, noise)


def samples_needed(noise: float, bound: float, hours: float) -> int:
    """How many samples, spread evenly over so many hours, show that something that does not grow is flat.

    On average: half of the time noise alone makes the fitted slope larger than 0.
    """
    for count in range(FEWEST, _MOST):
        spread = count * hours**2 / 12.0
        if _quantile(count) * noise / math.sqrt(spread) <= bound:
            return count
    return _MOST


def _quantile(count: int) -> float:
    return float(stats.t.ppf(CONFIDENCE, count - 2))
