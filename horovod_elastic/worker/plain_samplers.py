"""PyTorch's own DistributedSampler, divided anew among the workers of each generation.

Elastic scripts should use hvd.elastic.ElasticSampler. Many scripts, Horovod's own example among them, make a
DistributedSampler once, before the loop. Then a worker that began at another size has epochs of another
length, and ranks no longer make the same requests. A sampler that was made for this worker's place follows
that place. A sampler is left alone if it was made for another place, is of a class of the script's own, or
was changed since.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType
from typing import Any

_made_for: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
"""Samplers that follow this worker's place, with the (workers, rank) that each has now."""


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
    """Have the samplers divide their datasets among the present workers. Their epochs stay as set."""
    place = _place()
    if place is None:
        return
    workers, rank = place
    for sampler, before in list(_made_for.items()):
        if (sampler.num_replicas, sampler.rank) == before != place:
            _divide(sampler, workers, rank)


def _divide(sampler: Any, workers: int, rank: int) -> None:
    """Set up the sampler as if it had been made for that place, with PyTorch's own arithmetic."""
    from torch.utils.data.distributed import DistributedSampler

    epoch = sampler.epoch
    DistributedSampler.__init__(
        sampler, sampler.dataset, workers, rank, sampler.shuffle, sampler.seed, sampler.drop_last
    )
    sampler.epoch = epoch


def _place() -> tuple[int, int] | None:
    """(workers, rank) as the script is told them; None: the script trains without Horovod so far."""
    horovod = sys.modules.get("horovod.torch.mpi_ops")
    if horovod is None or not getattr(horovod, "is_initialized", bool)():
        return None
    return horovod.size(), horovod.rank()
