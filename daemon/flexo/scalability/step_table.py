"""Step times of all batches that a job accepts, on any number of workers: what goodput is looked up in.

Made once for what was seen so far: what changes with every epoch (gradients) then costs a division and a
maximum. Nothing is calculated before it is asked for: many policies never ask.
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
"""Batches that are looked at for each number of workers, in equal ratios from the smallest to the largest."""
TABLE_WORKERS: Final = 64
"""Numbers of workers in a table that is made at once; beyond it each is calculated when it is asked for."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Batches and how they are split; arrays of shape (numbers of workers, candidate batches)."""

    workers: Array
    local: Array
    accumulated: Array
    batch: Array
    """Aggregate, samples, as it is when it has been split."""
    scale: Array
    """To the initial batch; 1 where it does not fit."""
    fits: npt.NDArray[np.bool_]
    """Whether the job accepts to be split so."""

    @classmethod
    def of(cls, workers: npt.NDArray[np.int64], limits: BatchLimits, batch: int) -> Splits:
        """Of `batch` alone or, if it is 0, of all that the limits allow."""
        each = workers[:, None].astype(float)
        wanted = np.full_like(each, batch) if batch else _candidates(each, limits)
        local, accumulated = split_each(wanted, each, limits)
        aggregate = each * local * (accumulated + 1)
        fits = (local >= max(1, limits.local.min)) & (local <= limits.local.max)
        scale = np.where(fits, aggregate / limits.initial, 1.0)
        return cls(each, local, accumulated, aggregate, scale, fits)


@lru_cache(maxsize=256)
def table_splits(limits: BatchLimits, batch: int) -> Splits:
    """For 1 to TABLE_WORKERS workers: the same whatever was seen."""
    return Splits.of(np.arange(1, TABLE_WORKERS + 1), limits, batch)


@dataclass(frozen=True)
class StepTable:
    """What was seen, and the batches that the job accepts. Hashable; what was calculated is kept."""

    seen: tuple[Observation, ...]
    """At least one; each setting once, in any order that is always the same."""
    limits: BatchLimits
    batch: int = 0
    """The only aggregate batch that the job accepts; 0: all within the limits."""

    @cached_property
    def model(self) -> StepModel:
        """The model of all that was seen."""
        return fit(self.seen)

    @property
    def splits(self) -> Splits:
        """Of 1 to TABLE_WORKERS workers."""
        return table_splits(self.limits, self.batch)

    @cached_property
    def within(self) -> Array:
        """Seconds of a step of each of `splits` on one node."""
        return self.step_s(self.splits, several_nodes=False)

    @cached_property
    def between(self) -> Array:
        """Likewise on several nodes."""
        return self.step_s(self.splits, several_nodes=True)

    def step_s(self, splits: Splits, several_nodes: bool) -> Array:
        """Seconds of all passes of one step; infinite where the job does not accept the split."""
        last = self.model.step_s(splits.workers, several_nodes, splits.local)
        return np.where(splits.fits, last + splits.accumulated * self.model.pass_s(splits.local), np.inf)


def _candidates(workers: Array, limits: BatchLimits) -> Array:
    """(numbers of workers, _CANDIDATES), the smallest batch never above the largest."""
    least = np.minimum(np.maximum(limits.initial, limits.local.min * workers), limits.largest)
    return np.asarray(least * (limits.largest / least) ** np.linspace(0.0, 1.0, _CANDIDATES))
