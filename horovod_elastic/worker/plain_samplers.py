"""PyTorch's own DistributedSampler, divided anew among the workers of each generation.

Elastic scripts should use hvd.elastic.ElasticSampler. Many, Horovod's own example among them, make a
DistributedSampler once, before the loop: then whoever began at another size has epochs of another length,
and ranks no longer ask for the same things. A sampler that was made for this worker's place follows that
place; one that was made for anything else, of a class of the script's own, or changed since, is left alone.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType
from typing import Any

_made_for: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
"""Samplers that follow this worker's place: the (workers, rank) that each has now."""


def patch_distributed(module: ModuleType) -> None:
    """Hook torch.utils.data.distributed: remember samplers that are made for this worker's place."""
    sampler = module.DistributedSampler
    made = sampler.__init__

    @functools.wraps(made)
    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if type(self) is sampler and (self.num_replicas, self.rank) == _place():
            _made_for[self] = (self.num_replicas, self.rank)

    sampler.__init__ = remembered


def divide_anew() -> None:
    """Have the samplers divide their datasets among the workers that there are now; epochs stay as set."""
    place = _place()
    if place is None:
        return
    workers, rank = place
    for sampler, before in list(_made_for.items()):
        if (sampler.num_replicas, sampler.rank) == before != place:
            _divide(sampler, workers, rank)


def _divide(sampler: Any, workers: int, rank: int) -> None:
    """As if it had been made for that place: PyTorch's own arithmetic, not ours."""
    from torch.utils.data.distributed import DistributedSampler

    epoch = sampler.epoch
    DistributedSampler.__init__(
        sampler, sampler.dataset, workers, rank, sampler.shuffle, sampler.seed, sampler.drop_last
    )
    sampler.epoch = epoch


def _place() -> tuple[int, int] | None:
    """(workers, rank) as the script is told them; None: it trains without Horovod, so far."""
    horovod = sys.modules.get("horovod.torch.mpi_ops")
    if horovod is None or not getattr(horovod, "is_initialized", bool)():
        return None
    return horovod.size(), horovod.rank()
