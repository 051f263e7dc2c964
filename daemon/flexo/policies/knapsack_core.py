"""The core of both knapsacks: the few items that could be part of a better choice, and the best of them.

A dynamic program takes one item of each group of the core. The other groups keep their items. A state is the
room that is used so far, of one kind or of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

FIRST_CORE = 64
"""Number of items of the first core that is tried. Each further core is CORE_GROWTH times as large."""
CORE_GROWTH = 4
ROUNDING = 1e-12
"""The rounding error of sums of floating-point values, as a part of these sums."""

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Choice = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """The items of one group, column by column; at least one."""

    kinds: _Ints
    """The index of the kind of room that each item takes."""
    weights: _Ints
    """The room that each item takes; not negative."""
    values: _Floats


def least(items: _Ints, losses: _Floats, size: int) -> _Ints:
    """Those `size` of the items (in order) whose losses are least, in their order."""
    if len(items) <= size:
        return items
    return np.sort(items[np.argpartition(losses[items], size)[:size]])


def open_items(chosen: _Ints, core: _Ints, group_of: _Ints) -> tuple[_Ints, list[_Ints]]:
    """The groups of the items in `core` (in order), and for each of them its chosen item and those."""
    groups, firsts = np.unique(group_of[core], return_index=True)
    parts = np.split(core, firsts[1:])
    return groups, [
        np.append(chosen[group], part) for group, part in zip(groups.tolist(), parts, strict=True)
    ]


def cells(groups: Sequence[CoreGroup], room: Sequence[int]) -> int:
    """The number of sums that `best_of` would compute: states times items."""
    items = sum(len(group.values) for group in groups)
    return prod(most + 1 for most in _usable(groups, room)) * items


def best_of(groups: Sequence[CoreGroup], room: Sequence[int]) -> tuple[int, ...]:
    """Per group: the index of its item. At least one choice fits into the room of each kind.

    Of equally good choices, always the same is returned.
    """
    most = _usable(groups, room)
    shape = tuple(each + 1 for each in most)
    best = np.zeros(shape)
    taken: list[_Choice] = []
    for group in groups:
        best, choice = _with_group(best, group)
        taken.append(choice)
    found: list[int] = []
    left = list(most)
    for group, choice in zip(reversed(groups), reversed(taken), strict=True):
        item = int(choice[tuple(left)])
        left[int(group.kinds[item])] -= int(group.weights[item])
        found.append(item)
    return tuple(reversed(found))


def _usable(groups: Sequence[CoreGroup], room: Sequence[int]) -> tuple[int, ...]:
    """The room of each kind, but no more than all groups together could use."""
    usable = np.zeros(len(room), np.int64)
    for group in groups:
        largest = np.zeros(len(room), np.int64)
        np.maximum.at(largest, group.kinds, group.weights)
        usable += largest
    return tuple(min(most, use) for most, use in zip(room, usable.tolist(), strict=True))


def _with_group(best: _Floats, group: CoreGroup) -> tuple[_Floats, _Choice]:
    """One step of the dynamic program. Per state: the best value with one of these items, and which item.

    `best`: per state, the best value of at most this room without the group.
    """
    added = np.full(best.shape, -np.inf)
    choice = np.zeros(best.shape, np.int32)
    columns = zip(group.kinds.tolist(), group.weights.tolist(), group.values.tolist(), strict=True)
    for number, (kind, weight, value) in enumerate(columns):
        if weight >= best.shape[kind]:
            continue
        before = (slice(None),) * kind
        candidate = best[(*before, slice(None, best.shape[kind] - weight))] + value
        target = added[(*before, slice(weight, None))]
        better = candidate > target
        np.copyto(target, candidate, where=better)
        choice[(*before, slice(weight, None))][better] = number
    return added, choice
