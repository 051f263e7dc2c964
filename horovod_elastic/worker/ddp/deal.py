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


@dataclass(frozen=True, slots=True)
class Deal:
    """How an epoch of `samples` samples is dealt out.

    `per_worker`: the batch of a DataLoader. `base`: the workers of the job's base. `drop_last`: whether the
    last batch is left out if it is not full. `in_blocks`: whether a worker has neighbours in the order,
    rather than every n-th sample. `even`: whether all workers have equally many samples in each step, for
    scripts that gather something for each sample; the global batch is then a little larger.
    """

    samples: int
    per_worker: int
    base: int
    drop_last: bool = False
    rule: BatchRule = BatchRule.KEEP
    in_blocks: bool = False
    even: bool = False

    def global_batch(self, workers: int) -> int:
        """The samples of a full step. A worker never has more of them than a DataLoader's batch, or none."""
        if self.rule is BatchRule.GROW or workers < self.base:
            return self.per_worker * workers
        return self._rounded(max(self.per_worker * self.base, workers), workers)

    def _rounded(self, batch: int, workers: int) -> int:
        return batch + -batch % workers if self.even else batch

    def steps(self, start: int, workers: int, most: int | None = None) -> int:
        """The steps that are left, if `start` samples of the epoch are used; not more than `most`."""
        left, batch = max(0, self.samples - start), self.global_batch(workers)
        steps = left // batch if self.drop_last else -(-left // batch)
        return steps if most is None else min(steps, most)

    def end(self, start: int, workers: int, most: int | None = None) -> int:
        """How many samples are used after the step that begins at `start`.

        `most`: the steps that the script can still take, if it has counted them in advance. After a step that
        had no effect there is one less, and the next ones are a little larger.
        """
        batch = self.global_batch(workers)
        usable = self.samples - (self.samples % batch if self.drop_last else 0)
        if most:
            batch = max(batch, self._rounded(-(-(usable - start) // most), workers))
        return min(start + batch, self.samples)

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
        return Share(places, len(places) * workers / used)
