"""Nodes found by their size are those that looking at each would find, also after workers were dealt."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from small_clusters import node

from flexo.policies.capacity_index import CapacityIndex, Kind
from flexo.policies.node_capacity import NodeCapacity
from flexo_protos.resources import Resources

KINDS = (
    Kind(Resources(gpus=1, cpus=1)),
    Kind(Resources(gpus=2, cpus=1, gpu_type="v100")),
    Kind(Resources(gpus=1, cpus=2), frozenset({"t4"})),
    Kind(Resources(gpus=0, cpus=3)),
)


@dataclass
class Site:
    rooms: dict[str, NodeCapacity]
    idle_for: dict[str, float]
    index: CapacityIndex

    def fits(self, kind: Kind, name: str) -> int:
        room = self.rooms[name]
        suits = kind.gpu_types is None or room.node.gpu_type in kind.gpu_types
        return room.idle.holds(kind.shape) if suits else 0


@st.composite
def sites(draw: st.DrawFn) -> Site:
    rooms, idle_for = {}, {}
    for number in range(draw(st.integers(0, 12))):
        gpu_type = draw(st.sampled_from(("v100", "t4", "")))
        used = draw(st.integers(0, 4))
        each = node(f"n{number:02}", used=used, gpu_type=gpu_type)
        rooms[each.name] = NodeCapacity(
            each, usable=True, idle=Resources(4 - used, 8 - used, 16_000, gpu_type), coming=Resources()
        )
        idle_for[each.name] = draw(st.sampled_from((60.0, 900.0, math.inf)))
    return Site(rooms, idle_for, CapacityIndex(rooms, sorted(rooms), idle_for))


def paying(fits: int, stay_s: float) -> bool:
    return fits * stay_s > 120.0


def check(site: Site, wanted: int) -> None:
    for kind in KINDS:
        fits = {name: site.fits(kind, name) for name in site.rooms}
        good = [name for name in site.rooms if fits[name] and paying(fits[name], site.idle_for[name])]
        order = sorted(good, key=lambda name: (fits[name] < wanted, abs(fits[name] - wanted), name))
        assert list(site.index.tightest_first(kind, wanted, paying)) == order
        assert site.index.total(kind, paying) == sum(fits[name] for name in good)
        bad = [name for name in site.rooms if fits[name] and name not in good]
        assert site.index.not_paying(kind, paying) == sorted(bad)
        assert [site.index.holds(kind, name) for name in site.rooms] == [*fits.values()]


@given(sites(), st.integers(1, 6), st.lists(st.integers(0, 11), max_size=8))
def test_nodes_are_found_as_by_looking_at_each(site: Site, wanted: int, taken: list[int]) -> None:
    check(site, wanted)
    for number in taken:
        name = f"n{number:02}"
        if name in site.rooms:
            site.rooms[name].take(Resources(1, 1))
            site.index.changed(name)
            check(site, wanted)


def test_a_node_that_is_none_of_them_holds_nobody() -> None:
    assert CapacityIndex({}, [], {}).holds(KINDS[0], "n1") == 0
