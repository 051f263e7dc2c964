"""Which samples of an epoch are in which step, and which of them are whose. Pure.

torch's DistributedSampler gives rank r of n every n-th sample of the epoch's order, from the r-th, and a
DataLoader cuts that into batches. So step after step, the ranks together use the order from its beginning to
its end. This holds however many ranks there are, if each step begins where the step before it has ended.
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
    last batch is left out if it is not full.
    """

    samples: int
    per_worker: int
    base: int
    drop_last: bool = False
    rule: BatchRule = BatchRule.KEEP

    def global_batch(self, workers: int) -> int:
        """The samples of a full step. A worker never has more of them than a DataLoader's batch, or none."""
        if self.rule is BatchRule.GROW or workers < self.base:
            return self.per_worker * workers
        return max(self.per_worker * self.base, workers)

    def steps(self, start: int, workers: int) -> int:
        """The steps that are left, if `start` samples of the epoch are used."""
        left, batch = max(0, self.samples - start), self.global_batch(workers)
        return left // batch if self.drop_last else -(-left // batch)

    def end(self, start: int, workers: int) -> int:
        """How many samples are used after the step that begins at `start`."""
        return min(start + self.global_batch(workers), self.samples)

    def share(self, start: int, rank: int, workers: int) -> Share:
        """The part of the step that begins at `start` for this rank. There must be such a step."""
        end = self.end(start, workers)
        used = end - start
        if used % workers and end == self.samples:  # the last step: as many for each, as DistributedSampler
            used += workers - used % workers
        places = range(start + rank, start + used, workers)
        return Share(places, len(places) * workers / used)
