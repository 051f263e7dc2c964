"""Efficiency: what a GPU does at some size, to what it does at the size that is best for it."""

from __future__ import annotations

from collections.abc import Mapping


def efficiencies(throughputs: Mapping[int, float]) -> dict[int, float]:
    """By number of workers p, from throughputs t(p): p* t(p) / (p t(p*)), 0 to 1.

    p* is the parallelism of the highest throughput a GPU (Wu et al., "Amoeba", section 3.1): not always one
    worker, because a large batch may not fit there. Raises ValueError where nothing has a throughput.
    """
    best = max((rate / workers for workers, rate in throughputs.items()), default=0.0)
    if best <= 0:
        raise ValueError("no number of workers has a throughput")
    return {workers: rate / workers / best for workers, rate in throughputs.items()}
