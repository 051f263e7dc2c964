"""Mixtures of lognormal distributions: durations of jobs, which one lognormal is too narrow to describe.

Values are drawn from uniform numbers alone, so that a seed gives the same jobs with any release of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 3000
"""Number of rounds of expectation and maximization."""
_NARROWEST = 0.05
"""Least standard deviation, so that no part shrinks to one value."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lognormals:
    """A mixture of parts with `weights`. Each part is the exponential of a normal distribution with its mean
    and deviation."""

    weights: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    def draw(self, which: Numbers, where: Numbers, longest: float) -> Numbers:
        """One value, at most `longest`, for each pair of numbers in 0..1: `which` chooses the part, `where`
        the value."""
        from scipy.special import ndtr, ndtri  # takes a while to import, and most simulations draw nothing

        part = np.minimum(np.searchsorted(np.cumsum(self.weights), which), len(self.weights) - 1)
        mean, deviation = np.array(self.means)[part], np.array(self.deviations)[part]
        below_longest = ndtr((np.log(longest) - mean) / deviation)
        drawn: Numbers = np.exp(mean + deviation * ndtri(np.maximum(where, 1e-12) * below_longest))
        return drawn

    def share_below(self, value: Numbers) -> Numbers:
        """The distribution function."""
        from scipy.special import ndtr

        scores = (np.log(value)[:, None] - np.array(self.means)) / np.array(self.deviations)
        below: Numbers = ndtr(scores) @ np.array(self.weights)
        return below


def fit(values: Numbers, starts: Sequence[float]) -> Lognormals:
    """Fit one part for each of `starts`, quantiles (0 to 1) of `values` at which their means begin.

    It runs a fixed number of rounds of expectation and maximization on the logarithms, from equal weights.
    """
    logs = np.log(values)
    means = np.quantile(logs, starts)
    deviations = np.full(len(starts), logs.std() / 2)
    weights = np.full(len(starts), 1 / len(starts))
    for _ in range(_ROUNDS):
        scores = (logs[:, None] - means) / deviations
        shares = weights / deviations * np.exp(-0.5 * scores**2)
        shares /= shares.sum(axis=1, keepdims=True)
        total = shares.sum(axis=0)
        weights = total / len(logs)
        means = (shares * logs[:, None]).sum(axis=0) / total
        spread = (shares * (logs[:, None] - means) ** 2).sum(axis=0) / total
        deviations = np.maximum(np.sqrt(spread), _NARROWEST)
    return Lognormals(*(tuple(round(float(x), 3) for x in part) for part in (weights, means, deviations)))
