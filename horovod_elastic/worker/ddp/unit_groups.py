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
from horovod_elastic.worker.ddp.default_group import DefaultGroup, Follower
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup
from horovod_elastic.worker.ddp.units import Kind, Unit, kind_of

FIRST_FIXED = 10_000
"""The number of the first group of fixed ranks; those across units have smaller ones."""


class UnitsGroup(DefaultGroup):
    """The default group of a script with units.

    `cannot_resize`: is called with the ranks of a group that can be in no resizable job.
    """

    def __init__(self, unit: Unit, cannot_resize: Callable[[Sequence[int]], None]) -> None:
        self._inside_unit: list[tuple[Any, list[int]]] = []
        self._fixed_groups = 0
        super().__init__(0, 1)
        self.unit: Unit = unit
        self.scatter_weight = 1.0
        """The factor for this worker's gradients where the workers of a unit reduce them first."""
        self._cannot_resize = cannot_resize
        self.across = AcrossUnits(self, "", unit.size)
        """A group for flexo itself."""
        self.add(self.across)
        self.new_group = self._make_group

    @property
    def of_alike(self) -> ElasticGroup:
        """See ElasticGroup.of_alike."""
        return self.across

    def weigh(self, weight: float, alike: int, batch: int = 0) -> None:
        """See ElasticGroup.weigh."""
        of_unit = alike > 1
        self.scatter_weight = 1.0 if of_unit else weight
        super().weigh(weight if of_unit else 1.0, alike)
        self.weight = weight

    def _tell_followers(self) -> None:
        super()._tell_followers()
        size, rank = self.unit.size, self.rank()
        for group, places in self._inside_unit:
            torchs_own.has_ranks(group, [rank - rank % size + place for place in places])

    def _make_group(self, ranks: list[int], *_: Any, group_name: str = "", **__: Any) -> Any:
        """See DefaultGroup.new_group; None for other ranks' groups."""
        size, own = self.unit.size, self.rank()
        kind = kind_of(ranks, size, self.size()) if ranks == sorted(ranks) else Kind.OTHER
        if kind is Kind.OTHER:
            self._cannot_resize(ranks)
        if own not in ranks:
            return None
        if kind is Kind.OTHER:
            return self._fixed(ranks, group_name)
        if kind is Kind.ACROSS:
            across = AcrossUnits(self, group_name, size)
            self.add(across)
            across.weight = self.across.weight
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


class AcrossUnits(Follower):
    """A group of the workers in the same place of each unit, of `unit_size` workers."""

    def __init__(self, default: UnitsGroup, name: str, unit_size: int) -> None:
        super().__init__(default, name)
        self._unit_size = unit_size

    def is_told_by_default(self) -> None:
        """See Follower."""
        rank, world, size = self._default.rank(), self._default.size(), self._unit_size
        self.is_told(rank // size, world // size)
        torchs_own.has_ranks(self, range(rank % size, world, size))

    def enter(self, communicator: Communicator) -> None:
        """See ElasticGroup.enter."""
        place, size = communicator.place, self._unit_size
        ranks = tuple(range(place.rank % size, place.size, size))
        numbers = {members: number for number, members in communicator.process_sets().items()}
        self._members = numbers.get(ranks, self._members)
        self._enter(communicator, place.rank // size, len(ranks))
