"""Step times of all batches that a job accepts, on any number of workers; goodput is looked up in this table.

The table is made once for the observations so far. A change of gradients, as after every epoch, then costs
only a division and a maximum. Values are calculated on demand, because many policies never ask for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from flexo.scalability.allreduce import StepModel, fit
from flexo.scalability.local_batch import BatchLimits, split_each
from flexo.scalability.step_times import Observation

Array = npt.NDArray[np.float64]

_CANDIDATES: Final = 32
"""Number of batches that are tried for each number of workers, in equal ratios from the smallest to the
largest."""
TABLE_WORKERS: Final = 64
"""The largest number of workers in the table, which is calculated at once. Larger ones are calculated on
demand."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Batches and their splits; arrays of shape (numbers of workers, candidate batches)."""

    workers: Array
    local: Array
    accumulated: Array
    batch: Array
    """The aggregate batch after the split, in samples."""
    scale: Array
    """The batch divided by the initial batch; 1 where the batch does not fit."""
    fits: npt.NDArray[np.bool_]
    """Whether the job accepts this split."""

    @classmethod
    def of(cls, workers: npt.NDArray[np.int64], limits: BatchLimits, batch: int) -> Splits:
        """The splits of `batch` alone or, if it is 0, of all batches that the limits allow."""
        each = workers[:, None].astype(float)
        wanted = np.full_like(each, batch) if batch else _candidates(each, limits)
        local, accumulated = split_each(wanted, each, limits)
        aggregate = each * local * (accumulated + 1)
        fits = (local >= max(1, limits.local.min)) & (local <= limits.local.max)
        scale = np.where(fits, aggregate / limits.initial, 1.0)
        return cls(each, local, accumulated, aggregate, scale, fits)


@lru_cache(maxsize=256)
def table_splits(limits: BatchLimits, batch: int) -> Splits:
    """The splits for 1 to TABLE_WORKERS workers, which do not depend on observations."""
    return Splits.of(np.arange(1, TABLE_WORKERS + 1), limits, batch)


@dataclass(frozen=True)
class StepTable:
    """The observations, and the batches that the job accepts. Hashable; calculated values are cached."""

    seen: tuple[Observation, ...]
    """At least one observation, each setting once; equal observations are always in the same order."""
    limits: BatchLimits
    batch: int = 0
    """The only aggregate batch that the job accepts; 0: all within the limits."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.seen, self.limits, self.batch))

    @cached_property
    def model(self) -> StepModel:
        """The model of all observations."""
        return fit(self.seen)

    @property
    def splits(self) -> Splits:
        """The splits for 1 to TABLE_WORKERS workers."""
        return table_splits(self.limits, self.batch)

    @cached_property
    def within(self) -> Array:
        """Seconds of a step of each of `splits` on one node."""
        return self.step_s(self.splits, several_nodes=False)

    @cached_property
    def between(self) -> Array:
        """Seconds of a step of each of `splits` on several nodes."""
        return self.step_s(self.splits, several_nodes=True)

    def step_s(self, splits: Splits, several_nodes: bool) -> Array:
        """Seconds of all passes of one step; infinite where the job does not accept the split."""
        last = self.model.step_s(splits.workers, several_nodes, splits.local)
        return np.where(splits.fits, last + splits.accumulated * self.model.pass_s(splits.local), np.inf)


def _candidates(workers: Array, limits: BatchLimits) -> Array:
    """Candidate batches, of shape (numbers of workers, _CANDIDATES); the smallest is never above the
    largest."""
    least = np.minimum(np.maximum(limits.initial, limits.local.min * workers), limits.largest)
    return np.asarray(least * (limits.largest / least) ** np.linspace(0.0, 1.0, _CANDIDATES))
