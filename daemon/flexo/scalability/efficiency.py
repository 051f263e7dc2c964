"""Efficiency: throughput per worker at some size, divided by that at the best size."""

from __future__ import annotations

from collections.abc import Mapping


def efficiencies(throughputs: Mapping[int, float]) -> dict[int, float]:
    """The efficiency of each number of workers p, from throughputs t(p): p* t(p) / (p t(p*)), 0 to 1.

    p* is the parallelism with the highest throughput per GPU (Wu et al., "Amoeba", section 3.1). It is not
    always one worker, because a large batch may not fit on one. Raises ValueError if nothing has a
    throughput.
    """
    best = max((rate / workers for workers, rate in throughputs.items()), default=0.0)
    if best <= 0:
        raise ValueError("no number of workers has a throughput")
    return {workers: rate / workers / best for workers, rate in throughputs.items()}
