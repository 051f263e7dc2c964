"""The default group of an elastic script, with the groups of the script that come and go with it.

A script's second group of all workers (`dist.new_group()`) is such a group. Scripts make one for tensors on
CPUs, for a longer timeout, or for a thread. So it has connections of its own. They are made when the group is
first used in a generation, because only then do all members come to one place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from horovod_elastic.core.c10d.communicator import Communicator
from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup

_FIRST_WHOLE = 20_000
"""The process set of the first WholeGroup in a communicator. Those of units have smaller numbers."""


class DefaultGroup(ElasticGroup):
    """The default group (see the module)."""

    new_group: Callable[..., Any] | None = None
    """If there is one, torch.distributed calls it in dist.new_group to make a group."""

    def __init__(self, rank: int, size: int) -> None:
        self._followers: list[Follower] = []
        self._muted = self._guards = False
        super().__init__(rank, size)
        self._whole_groups = 0
        """How many groups of all workers the script has made."""

    @property
    def muted(self) -> bool:
        """See ElasticGroup.muted."""
        return self._muted

    @muted.setter
    def muted(self, muted: bool) -> None:
        self._muted = muted
        for each in self._followers:
            each.muted = muted

    @property
    def guards(self) -> bool:
        """See ElasticGroup.guards."""
        return self._guards

    @guards.setter
    def guards(self, guards: bool) -> None:
        self._guards = guards
        for each in self._followers:
            each.guards = guards

    def weigh(self, weight: float, alike: int, batch: int = 0) -> None:
        """See ElasticGroup.weigh."""
        super().weigh(weight, alike, batch)
        for each in self._followers:
            each.weight = weight

    def enter(self, communicator: Communicator) -> None:
        """See ElasticGroup.enter."""
        super().enter(communicator)
        for each in self._followers:
            each.enter(communicator)

    def wait_for_gpu(self) -> None:
        """See ElasticGroup.wait_for_gpu."""
        super().wait_for_gpu()
        for each in self._followers:
            each.wait_for_gpu()

    def is_told(self, rank: int, size: int) -> None:
        """See ElasticGroup.is_told."""
        super().is_told(rank, size)
        self._tell_followers()

    def take_place(self) -> None:
        """See ElasticGroup.take_place."""
        super().take_place()
        self._tell_followers()

    def _tell_followers(self) -> None:
        for each in self._followers:
            each.is_told_by_default()

    def leave(self) -> None:
        """See ElasticGroup.leave."""
        super().leave()
        for each in self._followers:
            each.leave()

    def add(self, follower: Follower) -> None:
        """Have a group come and go with this one from now on."""
        follower.weight, follower.muted, follower.guards = self.weight, self.muted, self.guards
        follower.adds_in_order = self.adds_in_order
        if self._communicator is not None:
            follower.enter(self._communicator)
        follower.is_told_by_default()
        self._followers.append(follower)

    def remove(self, follower: Follower) -> None:
        """Forget a group that the script has destroyed."""
        if follower in self._followers:
            self._followers.remove(follower)

    @contextlib.contextmanager
    def makes_whole_groups(self) -> Iterator[None]:
        """Have dist.new_group make an elastic group of all workers."""
        self.new_group = self._make_whole
        try:
            yield
        finally:
            self.new_group = None

    def _make_whole(self, *_: Any, group_name: str, **__: Any) -> WholeGroup:
        whole = WholeGroup(self, self._whole_groups, group_name)
        self._whole_groups += 1
        self.add(whole)
        return whole


class Follower(ElasticGroup):
    """A group of the script that comes and goes with `default`. `name`: torch.distributed's for it."""

    def __init__(self, default: DefaultGroup, name: str) -> None:
        super().__init__(0, 1)
        self._default = default
        self._name = name

    @property
    def group_name(self) -> str:
        """See ElasticGroup.group_name. torch.distributed still asks after it has forgotten the group."""
        return self._name

    def is_told_by_default(self) -> None:
        """Tell the script this group's place in a generation, whose place the default group has told."""
        raise NotImplementedError

    def note_failure(self, error: object) -> None:
        """See ElasticGroup.note_failure. The default group keeps it, and is muted together with this one."""
        self._default.note_failure(error)

    def shutdown(self) -> None:
        """End, because the script destroys the group."""
        self._default.remove(self)


class WholeGroup(Follower):
    """A group of all workers (see the module). `number`: how many the script has made before."""

    def __init__(self, default: DefaultGroup, number: int, name: str) -> None:
        super().__init__(default, name)
        self._members = _FIRST_WHOLE + number

    def is_told_by_default(self) -> None:
        """See Follower."""
        self.is_told(self._default.rank(), self._default.size())
        torchs_own.has_ranks(self, range(self.size()))

    def shutdown(self) -> None:
        """See Follower."""
        super().shutdown()
        if self._inside is not None and self._communicator is not None:
            self._communicator.groups().remove(self._members)
        self._inside = None

    def _enter(self, communicator: Communicator, rank: int, size: int) -> None:
        self._communicator, self._inside, self._gpu = communicator, None, None

    def _carry(
        self, name: str, tensors: Sequence[torch.Tensor], alone: Callable[[], None], *given: Any
    ) -> Any:
        self._connect()
        return super()._carry(name, tensors, alone, *given)

    def _reduce_gradients(self, tensors: list[torch.Tensor], *options: Any) -> Any:
        self._connect()
        self._default.reductions += 1
        return super()._reduce_gradients(tensors, *options)

    def _note_gathered(self, tensors: Sequence[torch.Tensor]) -> None:
        self._default._note_gathered(tensors)

    def _connect(self) -> None:
        """Connect all members, in a generation's first collective. Raises RuntimeError unless guarded."""
        communicator = self._communicator
        if self.muted or self._inside is not None or communicator is None:
            return
        if communicator.place.size == 1:
            return
        place, groups = communicator.place, communicator.groups()
        try:
            groups.build(self._members, tuple(range(place.size)))
            gloo = groups.gloo(self._members)
            self._inside = torchs_own.plain_group(place.rank, place.size, gloo)
            if self._default.patience is not None:
                torchs_own.have_wait(gloo, self._default.patience)
        except RuntimeError as error:  # a member is gone
            if not self.guards:
                raise
            self.note_failure(error)
