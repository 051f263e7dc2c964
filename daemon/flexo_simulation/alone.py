"""How long a training takes alone and undisturbed, from its beginning to its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexo.model.training import NodeShare
from flexo_simulation.training import Training

_LONGEST_LIFE = 1_000_000
"""Changes of speed after which it is assumed to have no end."""


def alone_s(training: Training, workers: int) -> float:
    """Seconds with `workers` on one node; infinite: it cannot."""
    return alone_on_s(training, (NodeShare("alone", workers),))


def alone_on_s(training: Training, shares: Sequence[NodeShare]) -> float:
    """Seconds with `shares`; infinite: it cannot."""
    run, total = training.begin(), 0.0
    for _ in range(_LONGEST_LIFE):
        if run.finished:
            return total
        left = run.time_left_s(shares, 0)
        if not math.isfinite(left):
            return math.inf
        total += run.advance(left, shares, 0)
    return math.inf
