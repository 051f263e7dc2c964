"""A reset for Horovod's ElasticSampler that makes the order of samples once an epoch, and tells newcomers.

Horovod's own reset lists and shuffles the whole dataset whenever the sampler is told how far the epoch has
come: at every change, while all workers wait. But the order depends on seed, epoch and length alone. A worker
that joins in the middle of an epoch can be sent the order in a small part of that time.
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
"""The attribute of a sampler that holds its _Order."""


class _Order:
    """The order that a sampler made last: one epoch's indices, and the seed that they depend on."""

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
    """The order that `sampler` has made: the order's seed, and its indices (int64, one for each sample).

    None if `sampler` has made no order, or is no sampler.
    """
    import torch

    order: _Order | None = getattr(sampler, _ATTRIBUTE, None)
    if order is None or not order.indices:
        return None
    return order.seed, torch.frombuffer(array.array("q", order.indices), dtype=torch.int64)


def tell(sampler: Any, what: tuple[Any, torch.Tensor] | None) -> None:
    """Give `sampler` the order that another sampler of the same dataset has made."""
    if what is not None:
        seed, indices = what
        setattr(sampler, _ATTRIBUTE, _Order(seed, indices.tolist()))


def reset(module: ModuleType) -> Callable[[Any], None]:
    """The replacement of ElasticSampler.reset. `module`: horovod.torch.elastic.sampler."""

    def reset(self: Any) -> None:
        """Divide the rest of the epoch among the present workers."""
        self.num_replicas, self.rank = module.size(), module.rank()
        self.remaining_indices = _left(self)
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    return reset


def _left(sampler: Any) -> list[int]:
    """The indices that were not processed in this epoch, in the epoch's order."""
    samples = len(sampler.dataset)
    if not sampler.shuffle:
        return list(range(samples)[sampler.processed_num :])
    seed = sampler.seed + sampler.epoch
    order: _Order | None = getattr(sampler, _ATTRIBUTE, None)
    if order is None or not order.is_for(seed, samples):
        setattr(sampler, _ATTRIBUTE, None)  # so that memory never holds two orders
        order = _made(seed, samples)
        setattr(sampler, _ATTRIBUTE, order)
    return order.indices[sampler.processed_num :]
