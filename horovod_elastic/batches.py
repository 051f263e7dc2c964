"""The number of samples that each worker takes in a step. All workers together take the aggregate batch.

Pure. The aggregate batch is the number of samples that the model sees in one step of the optimizer, whatever
the number of workers (Amoeba, section 5.4: it is fixed under scaling). Each worker computes its own share
from the same four numbers, so no message is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

RANGE_VARIABLE = "FLEXO_ELASTIC_BATCH"
"""Environment variable that the cluster's plugin sets in jobs submitted with --elastic-batch=MIN-MAX."""


class BadBatch(ValueError):
    """An impossible batch; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Share:
    """The work of one worker in one step: a forward and a backward pass for each part, then one exchange."""

    aggregate: int
    """Number of samples that all workers together take in a step."""
    workers: int
    parts: tuple[int, ...]
    """Number of samples in each pass; each fits the GPU."""

    @property
    def samples(self) -> int:
        """Number of samples that this worker takes in a step."""
        return sum(self.parts)

    @property
    def passes(self) -> int:
        """Number of backward passes before the gradients are exchanged."""
        return len(self.parts)


def share(aggregate: int, workers: int, rank: int, largest: int = 0, *, even: bool = False) -> Share:
    """The share of worker `rank` of `workers` in a step of `aggregate` samples.

    The shares of all ranks add up to `aggregate`. They differ by one sample at most, and the first ranks have
    the larger shares. `largest`: number of samples that fit the GPU's memory (0: no limit). A larger share is
    taken in parts, whose gradients are added up before the exchange (Amoeba, section 5.4: "Insufficient GPU
    memory"). The paper's parts are one smaller than what fits; here `largest` itself is allowed. Parts are as
    few and as equal as possible, the larger parts first.

    `even`: all ranks take the same number, and `aggregate` is rounded down to a multiple of `workers`.

    With fewer samples than workers, every worker takes one sample, because no worker may be idle in the
    exchange. Only then is the aggregate batch larger than `aggregate`. Raises BadBatch.
    """
    if workers < 1 or not 0 <= rank < workers:
        raise BadBatch(f"rank {rank} of {workers} workers: ranks are 0 to the number of workers less one")
    if aggregate < 1 or largest < 0:
        raise BadBatch(f"a batch of {aggregate} samples, at most {largest} in one pass: both from 1 on")
    whole = max(aggregate - aggregate % workers if even else aggregate, workers)
    mine = _evenly(whole, workers)[rank]
    return Share(whole, workers, split(mine, largest))


def split(samples: int, largest: int) -> tuple[int, ...]:
    """Split `samples` (1 or more) into as few even parts as possible, of at most `largest` (0: no limit)."""
    return _evenly(samples, -(-samples // largest) if largest else 1)


def _evenly(total: int, parts: int) -> tuple[int, ...]:
    each, more = divmod(total, parts)
    return tuple(each + 1 if part < more else each for part in range(parts))


def linear(rate: float, before: int, now: int) -> float:
    """The learning rate for an aggregate batch of `now` samples, where `rate` was right for `before`.

    The rate changes in proportion to the batch, so that a sample moves the model as far as before. This is
    the usual rule for SGD while batches are not extreme.
    """
    return rate * now / before


def smallest_allowed(environment: Mapping[str, str] = os.environ) -> int | None:
    """The lower end of the range that the job was submitted with (--elastic-batch); None without a range."""
    match = re.fullmatch(r"([1-9]\d{0,8})-([1-9]\d{0,8})", environment.get(RANGE_VARIABLE, ""))
    return int(match[1]) if match else None
