"""Horovod's ElasticSampler with an order of the samples that is made once an epoch.

The sampler lists and shuffles its whole dataset whenever it is told how far the epoch has come: at every
change, while everybody waits. But the order depends on seed, epoch and length alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Order:
    """The order that a sampler made last: memory for one epoch's indices."""

    def __init__(self, seed: Any, samples: int) -> None:
        self._made_for = seed, samples
        self.indices = list(range(samples))
        random.Random(seed).shuffle(self.indices)

    def is_for(self, seed: Any, samples: int) -> bool:
        return self._made_for == (seed, samples)


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
    order: _Order | None = getattr(sampler, "_flexo_order", None)
    if order is None or not order.is_for(seed, samples):
        order = sampler._flexo_order = None  # so that there are never two
        order = sampler._flexo_order = _Order(seed, samples)
    return order.indices[sampler.processed_num :]
