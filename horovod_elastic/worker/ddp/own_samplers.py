"""Samplers of a script's own classes that give each rank its part of an epoch, as DistributedSampler does.

Such a sampler has the number of ranks and its rank as attributes. Told that it is the only rank, it gives the
whole order, which flexo deals out. That is tried out first: this rank's part must be every n-th sample of the
whole, or a block of it. If it is neither, the parts cannot be dealt out anew, and the job keeps its size.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

from horovod_elastic import reproducible
from horovod_elastic.worker.ddp import own_generators
from horovod_elastic.worker.ddp.captured import RandomNumbers
from horovod_elastic.worker.ddp.script_variables import is_plain_data
from horovod_elastic.worker.ddp.sources import SAID, Source, sampler_of
from horovod_elastic.worker.state_messages import StatePart

_RANKS = "num_replicas", "world_size"
_TOTAL, _OWN = "total_size", "num_samples"


def source_of(loader: Any) -> Source | None:
    """The source of a loader over such a sampler; None if its parts cannot be dealt out anew."""
    from torch.utils.data import BatchSampler

    sampler, batches = sampler_of(loader), loader.batch_sampler
    if type(batches) is not BatchSampler or ranks_of(sampler) is None or not hasattr(sampler, "__len__"):
        return None
    if reproducible.virtual_workers(os.environ):  # the ranks are always the same
        return None
    known = _known.get(sampler)
    if known is None:
        _known[sampler] = known = _OwnSampler(sampler)
    if not known.is_dealt:
        return None
    epoch = getattr(sampler, "epoch", 0)
    return Source(
        samples=known.samples,
        per_worker=batches.batch_size,
        drop_last=batches.drop_last,
        order=known.order,
        epoch=epoch if isinstance(epoch, int) else 0,
        sampler=known,
        says_epoch=hasattr(sampler, SAID),
        counts_order=True,
    )


def ranks_of(sampler: Any) -> tuple[str, int, int] | None:
    """The name of the attribute with the number of ranks, that number, and the rank; None without them."""
    has = getattr(sampler, "__dict__", {})
    name = next((each for each in _RANKS if type(has.get(each)) is int), None)
    return None if name is None or type(has.get("rank")) is not int else (name, has[name], has["rank"])


class _OwnSampler(StatePart):
    """Such a sampler, and what newcomers are told of it: its plain attributes but the rank."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = weakref.ref(sampler)
        self.samples = 0
        """How many are in an epoch, as far as is known."""
        self.is_dealt = False
        """Whether flexo can deal them out."""
        found = ranks_of(sampler)
        assert found is not None
        _, ranks, rank = found
        most = len(sampler) + 1  # one without an end gives more
        with _unchanged(sampler) as trial:
            part = list(itertools.islice(trial, most))
        with _unchanged(sampler) as trial, _alone(trial):
            whole = list(itertools.islice(trial, ranks * most))
        block = whole[rank * len(part) : (rank + 1) * len(part)]
        covers = 0 <= ranks * len(part) - len(whole) < ranks or 0 <= len(whole) - ranks * len(part) < ranks
        parts = whole[rank::ranks][: len(part)], block
        self.is_dealt = (
            covers and len(part) < most and all(type(each) is int for each in whole) and part in parts
        )
        self.samples = len(whole)

    def order(self) -> list[int]:
        """The coming epoch's order. The sampler changes as it does when its own part is asked for."""
        sampler = self._sampler()
        with _alone(sampler):
            order = [int(each) for each in sampler or ()]
        self.samples = len(order)
        return order

    def own(self) -> Any:
        """See StatePart.own."""
        attributes = vars(self._sampler()).items()
        plain = {name: each for name, each in attributes if is_plain_data(each) and name != "rank"}
        drawn = {name: own_generators.state(each) for name, each in attributes if own_generators.is_one(each)}
        return self.samples, plain, drawn

    def take_over(self, theirs: Any) -> None:
        """See StatePart.take_over."""
        self.samples, plain, drawn = theirs
        sampler = self._sampler()
        vars(sampler).update(plain)
        for name, state in drawn.items():
            own_generators.set_state(getattr(sampler, name), state)


_known: weakref.WeakKeyDictionary[Any, _OwnSampler] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _alone(sampler: Any) -> Iterator[None]:
    """Tell the sampler for a while that its rank is the only one."""
    has, found = vars(sampler), ranks_of(sampler)
    assert found is not None
    told = {found[0]: 1, "rank": 0}
    if type(has.get(_TOTAL)) is int and type(has.get(_OWN)) is int:
        told[_OWN] = has[_TOTAL]
    before = {name: has[name] for name in told}
    has.update(told)
    try:
        yield
    finally:
        has.update(before)


@contextlib.contextmanager
def _unchanged(sampler: Any) -> Iterator[Any]:
    """A copy of the sampler to try it out. Random numbers are afterwards as they were before."""
    trial, numbers = copy.copy(sampler), RandomNumbers()
    drawing = [each for each in vars(sampler).values() if own_generators.is_one(each)]
    before = numbers.own(), [own_generators.state(each) for each in drawing]
    try:
        yield trial
    finally:
        numbers.take_over(before[0])
        for each, state in zip(drawing, before[1], strict=True):
            own_generators.set_state(each, state)
