"""The order of an epoch: it says which sample of the dataset stands at which position."""

from __future__ import annotations

from typing import Literal

import torch

from horovod_elastic.data.allotment import Ranges

Shuffle = Literal["samples", "partitions"]


class Order:
    """The orders of all epochs. An order depends on seed and epoch only, so it is equal on all workers."""

    def __init__(self, samples: int, shuffle: Shuffle) -> None:
        if shuffle not in ("samples", "partitions"):
            raise ValueError(f"shuffle is {shuffle!r}; allowed: 'samples', 'partitions'")
        self._samples = samples
        self._shuffle = shuffle
        self._made_for = (-1, -1)
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, ranges: Ranges, seed: int, epoch: int) -> torch.Tensor:
        """The indices into the dataset of the samples at these positions; int64, one-dimensional."""
        if self._shuffle == "partitions":
            return torch.cat([torch.arange(each.start, each.end) for each in ranges])
        if self._made_for != (seed, epoch):
            generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
            self._permutation = torch.randperm(self._samples, generator=generator)
            self._made_for = (seed, epoch)
        pieces = [self._permutation[each.start : each.end] for each in ranges]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
