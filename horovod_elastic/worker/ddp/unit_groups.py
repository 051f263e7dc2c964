"""The process groups of a script whose workers come and go in units (units.py).

The default group is elastic, as in any other elastic script (elastic_group.py). A group across units is
elastic, too. A group inside a unit has fixed members: it is real even while a newcomer practises, so that a
unit practises as a world of one replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod_elastic.core.c10d.communicator import Communicator
from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup
from horovod_elastic.worker.ddp.units import Kind, Unit, kind_of

FIRST_FIXED = 10_000
"""The number of the first group of fixed ranks; those across units have smaller ones."""


class UnitsGroup(ElasticGroup):
    """The default group of a script with units.

    `cannot_resize`: is called with the ranks of a group that can be in no resizable job.
    """

    def __init__(self, unit: Unit, cannot_resize: Callable[[Sequence[int]], None]) -> None:
        self._across: list[AcrossUnits] = []
        self._inside_unit: list[tuple[Any, list[int]]] = []
        self._muted = self._guards = False
        self._fixed_groups = 0
        super().__init__(0, 1)
        self.unit: Unit = unit
        self.scatter_weight = 1.0
        """The factor for this worker's gradients where the workers of a unit reduce them first."""
        self._cannot_resize = cannot_resize
        self.across = AcrossUnits(self)
        """A group for flexo itself."""
        self._across.append(self.across)

    @property
    def of_alike(self) -> ElasticGroup:
        """See ElasticGroup.of_alike."""
        return self.across

    @property
    def muted(self) -> bool:
        """See ElasticGroup.muted."""
        return self._muted

    @muted.setter
    def muted(self, muted: bool) -> None:
        self._muted = muted
        for each in self._across:
            each.muted = muted

    @property
    def guards(self) -> bool:
        """See ElasticGroup.guards."""
        return self._guards

    @guards.setter
    def guards(self, guards: bool) -> None:
        self._guards = guards
        for each in self._across:
            each.guards = guards

    def weigh(self, weight: float, alike: int, batch: int = 0) -> None:
        """See ElasticGroup.weigh."""
        of_unit = alike > 1
        self.weight = weight
        self.scatter_weight = 1.0 if of_unit else weight
        for each in self._across:
            each.weight = weight if of_unit else 1.0

    def enter(self, communicator: Communicator) -> None:
        """See ElasticGroup.enter."""
        super().enter(communicator)
        for each in self._across:
            each.enter(communicator)

    def is_told(self, rank: int, size: int) -> None:
        """See ElasticGroup.is_told."""
        super().is_told(rank, size)
        self._tell_groups()

    def take_place(self) -> None:
        """See ElasticGroup.take_place."""
        super().take_place()
        self._tell_groups()

    def _tell_groups(self) -> None:
        size, rank, world = self.unit.size, self.rank(), self.size()
        for each in self._across:
            each.is_told(rank // size, world // size)
            torchs_own.has_ranks(each, range(rank % size, world, size))
        for group, places in self._inside_unit:
            torchs_own.has_ranks(group, [rank - rank % size + place for place in places])

    def leave(self) -> None:
        """See ElasticGroup.leave."""
        super().leave()
        for each in self._across:
            each.leave()

    def new_group(self, ranks: list[int], *_: Any, group_name: str = "", **__: Any) -> Any:
        """Make a group for torch.distributed, which calls this in dist.new_group; None for other ranks'."""
        size, own = self.unit.size, self.rank()
        kind = kind_of(ranks, size, self.size()) if ranks == sorted(ranks) else Kind.OTHER
        if kind is Kind.OTHER:
            self._cannot_resize(ranks)
        if own not in ranks:
            return None
        if kind is Kind.OTHER:
            return self._fixed(ranks, group_name)
        if kind is Kind.ACROSS:
            across = AcrossUnits(self)
            across.weight, across.muted, across.guards = self.across.weight, self.muted, self.guards
            if self._communicator is not None:
                across.enter(self._communicator)
            across.is_told(own // size, self.size() // size)
            self._across.append(across)
            return across
        places = [rank % size for rank in ranks]
        group = self.unit.group(places)
        torchs_own.set_name(group, group_name)
        self._inside_unit.append((group, places))
        return group

    def _fixed(self, ranks: list[int], name: str) -> Any:
        """A group of fixed ranks, in a job that is not resized."""
        assert self._communicator is not None
        groups, number = self._communicator.groups(), FIRST_FIXED + self._fixed_groups
        self._fixed_groups += 1
        groups.build(number, tuple(ranks))
        gloo = groups.gloo(number) if len(ranks) > 1 else torchs_own.gloo_alone()
        group = torchs_own.plain_group(ranks.index(self.rank()), len(ranks), gloo)
        torchs_own.set_name(group, name)
        return group


class AcrossUnits(ElasticGroup):
    """A group of the workers in the same place of each unit. `default`: the script's default group."""

    def __init__(self, default: UnitsGroup) -> None:
        super().__init__(0, 1)
        self._default = default

    def enter(self, communicator: Communicator) -> None:
        """See ElasticGroup.enter."""
        place, size = communicator.place, self._default.unit.size
        ranks = tuple(range(place.rank % size, place.size, size))
        numbers = {members: number for number, members in communicator.process_sets().items()}
        self._members = numbers.get(ranks, self._members)
        self._enter(communicator, place.rank // size, len(ranks))

    def note_failure(self, error: object) -> None:
        """See ElasticGroup.note_failure. The default group keeps it, and is muted together with this one."""
        self._default.note_failure(error)
