"""Speed by a table of measured sizes: exact at these sizes, linear between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


class BadTable(ValueError):
    """The error for a table without a usable size; the message says why."""


@dataclass(frozen=True)
class TableSpeed:
    """Rates by the number of workers, on any nodes (implements Speed). Hashable.

    Below the smallest measured size, the rate is in proportion to the workers. Above the largest, it stays
    the same: a gain that nobody has measured is no reason to give a job GPUs.
    """

    sizes: tuple[int, ...]
    """Numbers of workers, ascending."""
    rates: tuple[float, ...]
    """Work per second with each number of workers."""

    @classmethod
    def of(cls, measured: Mapping[int, float]) -> TableSpeed:
        """Make a table of the measured rate per number of workers. A size with rate 0 could not run, and is
        left out.

        Raises BadTable if no size could run.
        """
        ran = {size: rate for size, rate in sorted(measured.items()) if rate > 0}
        if not ran or min(ran) < 1:
            raise BadTable("no number of workers has a speed")
        return cls(tuple(ran), tuple(ran.values()))

    def rate(self, workers: int, nodes: int = 1, batch: int = 0) -> float:
        """Work a second; neither nodes nor batch matter."""
        if workers < 1:
            return 0.0
        every = self._every
        return every[workers] if workers < len(every) else every[-1]

    def best_batch(self, workers: int, nodes: int) -> int:
        """0: the table is of one batch."""
        return 0

    @cached_property
    def _every(self) -> tuple[float, ...]:
        """The rate per number of workers, from 0 to the largest measured."""
        points = [(0, 0.0), *zip(self.sizes, self.rates, strict=True)]
        rates = [0.0]
        for (below, low), (above, high) in pairwise(points):
            slope = (high - low) / (above - below)
            rates.extend(low + slope * (workers - below) for workers in range(below + 1, above))
            rates.append(high)
        return tuple(rates)
