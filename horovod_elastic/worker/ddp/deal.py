"""Which samples of an epoch are in which step, and which of them are whose. Pure.

torch's DistributedSampler gives rank r of n every n-th sample of the epoch's order, from the r-th, and a
DataLoader cuts that into batches. Accelerate gives each rank a batch of neighbours in the order. Either way,
step after step, the ranks together use the order from its beginning to its end. This holds however many ranks
there are, if each step begins where the step before it has ended.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BatchRule(enum.Enum):
    """What becomes of the global batch, the samples of all workers in a step, when the job is resized."""

    KEEP = "keep"
    """The global batch stays that of the base, and each worker has a smaller part of it."""
    GROW = "grow"
    """Each worker keeps its batch, so that the global batch grows with the workers."""


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a step: places in the epoch's order, and how much its mean loss weighs."""

    places: range
    """Places beyond the end of the order stand for those at its beginning, as in DistributedSampler."""
    weight: float
    """The factor for this worker's gradients, so that their mean over workers is that over samples."""
    end: int
    """How many samples of the epoch are used after the step."""


@dataclass(frozen=True, slots=True)
class Deal:
    """How an epoch of `samples` samples is dealt out.

    `per_worker`: the batch of a DataLoader. `base`: the workers of the job's base. `drop_last`: whether the
    last batch is left out if it is not full. `in_blocks`: whether a worker has neighbours in the order,
    rather than every n-th sample. `even`: whether all workers have equally many samples in each step, for
    scripts that gather something for each sample; the global batch is then a little larger, or larger and
    smaller by turns where the script has counted the steps of an epoch in advance. `is_longer`: whether the
    epoch has got more samples than the script's, so that its last step might have hardly any.
    """

    samples: int
    per_worker: int
    base: int
    drop_last: bool = False
    rule: BatchRule = BatchRule.KEEP
    in_blocks: bool = False
    even: bool = False
    is_longer: bool = False

    def global_batch(self, workers: int) -> int:
        """The samples of a full step. A worker never has more of them than a DataLoader's batch, or none."""
        batch = self._batch(workers)
        return batch + -batch % workers if self.even else batch

    def _batch(self, workers: int) -> int:
        """The global batch that would do if workers need not have equally many samples."""
        if self.rule is BatchRule.GROW or workers < self.base:
            return self.per_worker * workers
        return max(self.per_worker * self.base, workers)

    def steps(self, start: int, workers: int, most: int | None = None) -> int:
        """The steps that are left, if `start` samples of the epoch are used; not more than `most`."""
        left = max(0, self.samples - start)
        if self.even and most is not None:
            return min(most, self._rows(start, workers))
        batch = self.global_batch(workers)
        steps = left // batch if self.drop_last else -(-left // batch)
        return steps if most is None else min(steps, most)

    def end(self, start: int, workers: int, most: int | None = None) -> int:
        """How many samples are used after the step that begins at `start`.

        `most`: the steps that the script can still take, if it has counted them in advance. After a step that
        had no effect there is one less, and the next ones are a little larger.
        """
        batch = self.global_batch(workers)
        if most:
            full = self._batch(workers)
            batch = max(full, -(-(self._usable(workers) - start) // most))
            if self.even:
                batch = self._even_batch(start, workers, most, batch)
        left = self.samples - start
        if self.is_longer and not self.drop_last and batch < left < 2 * batch:
            half = -(-left // 2)  # BatchNorm fails on a single sample
            batch = half + (-half % workers if self.even else 0)
        return min(start + batch, self.samples)

    def _even_batch(self, start: int, workers: int, most: int, batch: int) -> int:
        """As many samples for all workers, near `batch`, so that the epoch has exactly `most` more steps.

        Steps are larger and smaller by turns: none ends before the step of a job that keeps its size.
        """
        full, usable = self._batch(workers), self._usable(workers)
        planned = usable + -usable % full - (most - 1) * full
        rows = -(-(min(planned, start + batch) - start) // workers)
        return workers * max(1, min(rows, self._rows(start, workers) - (most - 1)))

    def _rows(self, start: int, workers: int) -> int:
        """How many samples are left for each worker; the last ones may be filled up."""
        return -(-max(0, self._usable(workers) - start) // workers)

    def _usable(self, workers: int) -> int:
        return self.samples - (self.samples % self._batch(workers) if self.drop_last else 0)

    def share(self, start: int, rank: int, workers: int, most: int | None = None) -> Share:
        """The part of the step that begins at `start` for this rank. There must be such a step."""
        end = self.end(start, workers, most)
        used = end - start
        if used % workers and end == self.samples:  # the last step: as many for each, as DistributedSampler
            used += workers - used % workers
        if self.in_blocks:
            places = range(start + used * rank // workers, start + used * (rank + 1) // workers)
        else:
            places = range(start + rank, start + used, workers)
        return Share(places, len(places) * workers / used, end)
