"""Splits an aggregate batch into passes on each worker, also a batch larger than what fits on the workers at
once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexo.model.ranges import Range

Array = npt.NDArray[np.float64]

_ROUNDING = 1e-8
"""Tolerance of rounding: less than this above a whole number counts as that number."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The batches that a job accepts, in samples."""

    initial: int
    """The batch that its hyper-parameters were tuned for; statistical efficiency is relative to it."""
    largest: int
    local: Range
    """Samples of one pass on one worker: from the least that is worth a pass to the most that fits into
    memory."""

    @property
    def most_workers(self) -> int:
        """The most workers among which the largest batch can be split."""
        return max(1, self.largest // self.local.min)

    def most_workers_of(self, batch: int) -> int:
        """The most workers among which `batch` can be split, where shares are rounded up (`split_each`)."""
        least = self.local.min
        return (batch - 1) // (least - 1) if least > 1 else batch

    def smallest(self, workers: int) -> int:
        """The smallest aggregate batch of this number of workers."""
        return max(self.initial, self.local.min * workers)


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of each worker in one step."""

    local: int
    """Samples of one pass."""
    accumulated: int
    """Passes that accumulate gradients, before the pass after which gradients are exchanged."""

    def batch(self, workers: int) -> int:
        """Samples of all workers in one step."""
        return workers * self.local * (self.accumulated + 1)


def split(batch: int, workers: int, limits: BatchLimits) -> Passes:
    """Passes with which `workers` train `batch` samples a step (see `split_each`)."""
    local, accumulated = split_each(np.array(float(batch)), np.array(float(workers)), limits)
    return Passes(int(local), int(accumulated))


def split_each(batch: Array, workers: Array, limits: BatchLimits) -> tuple[Array, Array]:
    """Samples of a pass, and passes accumulated before the last one; arrays are broadcast.

    Shares are rounded up, but the sum never exceeds the largest batch. A single worker with more than the
    initial batch accumulates at least once. A single pass would not reveal the noise of gradients (Qiao et
    al., "Pollux", OSDI 2021, section 3.1, and their artifact).
    """
    share = np.ceil(batch / workers - _ROUNDING)
    accumulated = np.ceil(share / limits.local.max - _ROUNDING) - 1
    alone = (workers == 1) & (batch > limits.initial + _ROUNDING)
    accumulated = np.where(alone, np.maximum(accumulated, 1), accumulated)
    local = np.ceil(share / (accumulated + 1) - _ROUNDING)
    return np.minimum(local, limits.largest // (workers * (accumulated + 1))), accumulated
