"""How many samples each worker takes in a step, so that all of them together take the aggregate batch.

Pure. The aggregate batch is what the model sees in one step of the optimizer, whatever the number of
workers (Amoeba, section 5.4: it is fixed under scaling). Each worker works its own share out from the same
four numbers, so nobody has to be told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

RANGE_VARIABLE = "FLEXO_ELASTIC_BATCH"
"""Set by the cluster's plugin in jobs that were submitted with --elastic-batch=MIN-MAX."""


class BadBatch(ValueError):
    """A batch that cannot be; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker does in one step: a forward and a backward pass for each part, then one exchange."""

    aggregate: int
    """Samples of all workers together in a step."""
    workers: int
    parts: tuple[int, ...]
    """Samples of each pass, none above what fits the GPU."""

    @property
    def samples(self) -> int:
        """Samples of this worker in a step."""
        return sum(self.parts)

    @property
    def passes(self) -> int:
        """Backward passes before the gradients are exchanged."""
        return len(self.parts)


def share(aggregate: int, workers: int, rank: int, largest: int = 0, *, even: bool = False) -> Share:
    """The share of worker `rank` of `workers` in a step of `aggregate` samples.

    The shares of all ranks add up to `aggregate`; they differ by one sample at most, and the first ranks
    have the larger ones. A share above `largest` (0: no limit), which is what fits the GPU's memory, is
    taken in parts whose gradients are added up before they are exchanged (Amoeba, section 5.4:
    "Insufficient GPU memory"; the paper's parts are one smaller than what fits, here `largest` itself is
    allowed). Parts are as few and as equal as possible, the larger ones first.

    `even`: all ranks take the same, and `aggregate` is rounded down to a multiple of the workers.

    With fewer samples than workers every worker takes one, as none may stand idle in the exchange: then,
    and only then, the aggregate batch is larger than asked for. Raises BadBatch.
    """
    if workers < 1 or not 0 <= rank < workers:
        raise BadBatch(f"rank {rank} of {workers} workers: ranks are 0 to the number of workers less one")
    if aggregate < 1 or largest < 0:
        raise BadBatch(f"a batch of {aggregate} samples, at most {largest} in one pass: both from 1 on")
    whole = max(aggregate - aggregate % workers if even else aggregate, workers)
    mine = _evenly(whole, workers)[rank]
    return Share(whole, workers, split(mine, largest))


def split(samples: int, largest: int) -> tuple[int, ...]:
    """`samples`, from 1 on, in even parts of at most `largest` (0: no limit), as few as there can be."""
    return _evenly(samples, -(-samples // largest) if largest else 1)


def _evenly(total: int, parts: int) -> tuple[int, ...]:
    each, more = divmod(total, parts)
    return tuple(each + 1 if part < more else each for part in range(parts))


def linear(rate: float, before: int, now: int) -> float:
    """The learning rate for an aggregate batch of `now` samples, where `rate` was right for `before`.

    In proportion, so that a sample moves the model as far as it did; the usual rule for SGD while batches
    are not extreme.
    """
    return rate * now / before


def smallest_allowed(environment: Mapping[str, str] = os.environ) -> int | None:
    """The lower end of the range that the job was submitted with (--elastic-batch); None without one."""
    match = re.fullmatch(r"([1-9]\d{0,8})-([1-9]\d{0,8})", environment.get(RANGE_VARIABLE, ""))
    return int(match[1]) if match else None
