"""Where the batches of a DataLoader come from whose epochs all workers use together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from horovod_elastic.worker.ddp.deal import BatchRule, Deal
from horovod_elastic.worker.state_messages import StatePart

MOST_OF_EPOCH = 64
"""Iterations over a training loader in an epoch, at most: some scripts look at a batch before they train."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the batches of a DataLoader come from, whose epochs all workers use together.

    `samples`: of an epoch. `per_worker`: the batch of a worker of the base. `order`: the coming epoch's.
    `epoch`: the coming epoch's number. `in_blocks`: see Deal. `used`: samples that are left out at the
    beginning, by a script that resumes. `sampler`: what the orders depend on, which newcomers are told. With
    `draws`, orders are drawn from random numbers, so that newcomers are told the present one, too.
    `says_epoch`: whether the script itself says which epoch comes. `counts_order`: whether an order may have
    another length than `samples`.
    """

    samples: int
    per_worker: int
    drop_last: bool
    order: Callable[[], list[int]]
    epoch: int = 0
    in_blocks: bool = False
    used: int = 0
    sampler: StatePart | None = None
    draws: bool = True
    says_epoch: bool = False
    counts_order: bool = False


SourceOf = Callable[[Any], Source | None]


def sampler_of(loader: Any) -> Any:
    """The sampler that a loader's batches are made of, whether the loader or the script cuts them."""
    from torch.utils.data import BatchSampler

    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else loader.sampler


def of_distributed_sampler(loader: Any) -> Source | None:
    """The source of a loader over PyTorch's DistributedSampler."""
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler, batches = sampler_of(loader), loader.batch_sampler
    if type(sampler) is not DistributedSampler or type(batches) is not BatchSampler:
        return None

    def order() -> list[int]:
        whole = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
        whole.set_epoch(sampler.epoch)
        return list(whole)

    return Source(
        samples=len(sampler.dataset),
        per_worker=batches.batch_size,
        drop_last=batches.drop_last,
        order=order,
        epoch=sampler.epoch,
        sampler=_EpochOf(sampler),
        draws=False,
        says_epoch=hasattr(sampler, SAID),
    )


SAID = "_flexo_epoch_is_said"
"""An attribute of samplers whose set_epoch was called."""


class _EpochOf(StatePart):
    """The epoch of a DistributedSampler: a script that resumes may have counted another in its practice."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def own(self) -> Any:
        """See StatePart.own."""
        return self._sampler.epoch

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        self._sampler.epoch = theirs


def deal_of(source: Source, base: int, rule: BatchRule) -> Deal:
    """How an epoch is dealt out."""
    return Deal(source.samples, source.per_worker, base, source.drop_last, rule, source.in_blocks)


def patch_sampler(module: ModuleType) -> None:
    """Hook torch.utils.data.distributed.DistributedSampler, to know whether the script says its epochs."""
    original = module.DistributedSampler.set_epoch

    @functools.wraps(original)
    def set_epoch(self: Any, epoch: int) -> None:
        setattr(self, SAID, True)
        original(self, epoch)

    module.DistributedSampler.set_epoch = set_epoch
