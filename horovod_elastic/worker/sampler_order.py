"""Horovod's ElasticSampler with an order of the samples that is made once an epoch, and told to newcomers.

The sampler lists and shuffles its whole dataset whenever it is told how far the epoch has come: at every
change, while everybody waits. But the order depends on seed, epoch and length alone, and whoever comes in
the middle of an epoch can be told of it in a small part of the time.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


_ATTRIBUTE = "_flexo_order"
"""Of a sampler: its _Order."""


class _Order:
    """The order that a sampler made last: memory for one epoch's indices."""

    def __init__(self, seed: Any, indices: list[int]) -> None:
        self.seed = seed
        self.indices = indices

    def is_for(self, seed: Any, samples: int) -> bool:
        return bool(self.seed == seed) and len(self.indices) == samples


def _made(seed: Any, samples: int) -> _Order:
    indices = list(range(samples))
    random.Random(seed).shuffle(indices)
    return _Order(seed, indices)


def told(sampler: Any) -> tuple[Any, torch.Tensor] | None:
    """The order that `sampler` has made: what it depends on, and indices (int64, one for each sample).

    None if it has made none, or is no sampler.
    """
    import torch

    order: _Order | None = getattr(sampler, _ATTRIBUTE, None)
    if order is None or not order.indices:
        return None
    return order.seed, torch.frombuffer(array.array("q", order.indices), dtype=torch.int64)


def tell(sampler: Any, what: tuple[Any, torch.Tensor] | None) -> None:
    """Have `sampler` know the order that another one with the same dataset has made."""
    if what is not None:
        seed, indices = what
        setattr(sampler, _ATTRIBUTE, _Order(seed, indices.tolist()))


def reset(module: ModuleType) -> Callable[[Any], None]:
    """ElasticSampler.reset for `module`, which is horovod.torch.elastic.sampler."""

    def reset(self: Any) -> None:
        """Divide what is left of the epoch among the workers that there are now."""
        self.num_replicas, self.rank = module.size(), module.rank()
        self.remaining_indices = _left(self)
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    return reset


def _left(sampler: Any) -> list[int]:
    """Indices that were not processed in this epoch, in its order."""
    samples = len(sampler.dataset)
    if not sampler.shuffle:
        return list(range(samples)[sampler.processed_num :])
    seed = sampler.seed + sampler.epoch
    order: _Order | None = getattr(sampler, _ATTRIBUTE, None)
    if order is None or not order.is_for(seed, samples):
        setattr(sampler, _ATTRIBUTE, None)  # so that there are never two
        order = _made(seed, samples)
        setattr(sampler, _ATTRIBUTE, order)
    return order.indices[sampler.processed_num :]
