"""The multiple-choice knapsack with a capacity of each GPU type: at most one item of each group.

A group is a job, and an item is one size of the job on one GPU type. Each type has a price per GPU. At given
prices every group takes its best item, so that a decision for thousands of jobs is a few hundred passes over
an array. It is solved as `knapsack` is:

1. Find the prices of the Lagrangian dual, min over p of p * capacity + sum over groups of max(value - p *
   GPUs). It bounds every choice from above. Prices are found type by type. That alone ends too high where
   jobs take one type for another, so that subgradient steps follow (Polyak, "Minimization of unsmooth
   functionals", 1969).
2. Thin the choice at these prices out until it fits, and fill it up greedily.
3. Run a dynamic program over a core: the items whose loss at these prices is least. The core grows until no
   item outside it can be part of a better choice, or until the next one would exceed `MOST_CELLS`. If even
   the first one would, because there are many types or GPUs, there are cores of two types at a time.

A choice on 64 GPUs of three types is nearly always proven to be the best. On thousands of GPUs it is not, but
the bound is close to it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from flexo.policies.knapsack_core import (
    CORE_GROWTH,
    FIRST_CORE,
    ROUNDING,
    CoreGroup,
    best_of,
    cells,
    least,
    open_items,
)
from flexo_protos.resources import Amount

MOST_CELLS = 20_000_000
"""The most sums that the dynamic program may compute. That takes about 0.1 s."""
MOST_OF_A_PAIR = 256
"""Number of items of the core of two types."""
FIRST_FILLED = 4096
"""Number of items that fill a choice up first. Then there are FILL_GROWTH times as many, and so on."""
FILL_GROWTH = 4
_SWEEPS = 2
"""How often the price of each type is found again, with the prices of the others as they are by then."""
_HALVINGS = 24
"""Steps of the search for one price."""
_SUBGRADIENTS = 120
"""Subgradient steps."""
_PATIENCE = 4
"""Subgradient steps without a lower bound, after which the steps become half as long."""
_LEAST_SCALE = 0.02
"""A step moves each price in proportion to itself, but at least to this part of the highest price."""

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TypedGroup:
    """The items of a group, column by column: a decision has some hundred thousand items.

    An item whose value is below 0 is never chosen.
    """

    gpu_types: Sequence[str]
    """The name of each item's GPU type."""
    gpus: Sequence[Amount]
    """The number of each item's GPUs, a whole one, 0 or more."""
    values: Sequence[float]
    """What each item is worth."""


def choose_by_type(groups: Sequence[TypedGroup], capacity: Mapping[str, int]) -> tuple[int, ...]:
    """Per group: the index of its item, or -1 for none. `capacity`: GPUs by type; none of other types.

    Equal arguments give equal results.
    """
    if not any(group.values for group in groups):
        return (-1,) * len(groups)
    return _Problem(groups, capacity).solve()


class _Problem:
    """All items in one sequence. Each group begins with an empty item: the choice of none."""

    def __init__(self, groups: Sequence[TypedGroup], capacity: Mapping[str, int]) -> None:
        names = list(capacity)
        number_of = {name: number for number, name in enumerate(names)}
        self.capacity: _Ints = np.array([capacity[name] for name in names], np.int64)
        sizes = np.fromiter((len(group.values) + 1 for group in groups), np.int64, len(groups))
        ends = np.cumsum(sizes)
        self.starts: _Ints = ends - sizes
        self.group_of: _Ints = np.repeat(np.arange(len(groups)), sizes)
        self.gpus: _Ints = np.zeros(int(ends[-1]), np.int64)
        self.values: _Floats = np.zeros(int(ends[-1]))
        self.types: _Ints = np.zeros(int(ends[-1]), np.int64)
        filled = np.ones(int(ends[-1]), np.bool_)
        filled[self.starts] = False
        self.gpus[filled] = list(chain.from_iterable(group.gpus for group in groups))
        self.values[filled] = list(chain.from_iterable(group.values for group in groups))
        types = chain.from_iterable(group.gpu_types for group in groups)
        known = np.array([number_of.get(gpu_type, -1) for gpu_type in types], np.int64)
        self.types[filled] = np.maximum(known, 0)
        self.values[np.flatnonzero(filled)[known < 0]] = -np.inf
        self.values[self.gpus > self.capacity[self.types]] = -np.inf
        self._weights: _Floats = self.gpus.astype(np.float64)
        self._worth: _Floats = np.empty_like(self.values)
        """Where `_best` computes. New arrays of this size would be new pages of memory each time, which take
        longer than the arithmetic."""
        self._best_of_group: _Floats = np.empty_like(self.values)

    def solve(self) -> tuple[int, ...]:
        """Prices, a greedy choice, cores."""
        prices = self._prices()
        bound, prices = self._lowered(prices, self._value(self._thinned(prices)))
        chosen = self._thinned(prices)
        losses = self._losses(prices)
        self._fill_up(chosen, losses)
        if not self._exchange(chosen, losses, bound):
            self._exchange_in_pairs(chosen, losses, bound)
        return tuple((chosen - self.starts - 1).tolist())

    def _exchange(self, chosen: _Ints, losses: _Floats, bound: float) -> bool:
        """Exchange items of a choice that fits, core by core. Returns whether the first could be tried."""
        size = FIRST_CORE
        while True:
            core = np.flatnonzero(self._better(chosen, losses, bound))
            complete = len(core) <= size
            if not self._try_core(chosen, least(core, losses, size)):
                return size > FIRST_CORE
            if complete:
                return True
            size *= CORE_GROWTH

    def _exchange_in_pairs(self, chosen: _Ints, losses: _Floats, bound: float) -> None:
        """Exchange items of two types at a time, as long as that gains something."""
        before = -np.inf
        while self._value(chosen) > before:
            before = self._value(chosen)
            for pair in combinations(range(len(self.capacity)), 2):
                inside = np.isin(self.types, pair) | (self.gpus == 0)
                better = self._better(chosen, losses, bound) & inside & inside[chosen][self.group_of]
                self._try_core(chosen, least(np.flatnonzero(better), losses, MOST_OF_A_PAIR))

    def _better(self, chosen: _Ints, losses: _Floats, bound: float) -> NDArray[np.bool_]:
        """Whether each item can be in a better choice: its loss is less than the distance from the bound."""
        better = losses < bound - self._value(chosen) - ROUNDING * bound
        better[chosen] = False
        return better

    def _value(self, chosen: _Ints) -> float:
        return float(self.values[chosen].sum())

    def _best(self, prices: _Floats) -> _Ints:
        """Each group's best item at these prices; of equally good items, the first."""
        worth, of_group = self._worth, self._best_of_group
        np.take(prices, self.types, out=worth, mode="clip")
        np.multiply(worth, self._weights, out=worth)
        np.subtract(self.values, worth, out=worth)
        np.take(np.maximum.reduceat(worth, self.starts), self.group_of, out=of_group, mode="clip")
        hits = np.flatnonzero(worth == of_group)
        return hits[np.searchsorted(hits, self.starts)]

    def _losses(self, prices: _Floats) -> _Floats:
        """Per item: how far the bound falls if the item is chosen. No choice with it is worth more than the
        bound less this."""
        self._best(prices)
        return self._best_of_group - self._worth

    def _used(self, chosen: _Ints) -> _Ints:
        """GPUs of each type."""
        counted = np.bincount(self.types[chosen], self.gpus[chosen], len(self.capacity))
        return counted.astype(np.int64)

    def _prices(self) -> _Floats:
        """A price of each type at which about as many GPUs are chosen as there are."""
        prices = np.zeros(len(self.capacity))
        weighty = (self.gpus > 0) & np.isfinite(self.values)
        if not weighty.any():
            return prices
        highest = float((self.values[weighty] / self.gpus[weighty]).max())
        for _ in range(_SWEEPS):
            for each in range(len(prices)):
                self._price(prices, each, highest)
        return prices

    def _price(self, prices: _Floats, of: int, highest: float) -> None:
        """Set the price of one type: the lowest at which no more GPUs are chosen than there are."""
        prices[of] = 0.0
        if self._used(self._best(prices))[of] <= self.capacity[of]:
            return
        low, high = 0.0, highest * 2
        for _ in range(_HALVINGS):
            prices[of] = (low + high) / 2
            if self._used(self._best(prices))[of] <= self.capacity[of]:
                high = prices[of]
            else:
                low = prices[of]
        prices[of] = high

    def _lowered(self, prices: _Floats, value: float) -> tuple[float, _Floats]:
        """The lowest bound that subgradient steps find, and its prices.

        `value`: of a choice that fits. No bound is lower, so each step goes as far as a bound that fell
        straight down to it would.
        """
        scale = np.maximum(prices, _LEAST_SCALE * prices.max(initial=0.0))
        lowest, best = np.inf, prices
        length, failed = 1.0, 0
        for _ in range(_SUBGRADIENTS):
            items = self._best(prices)
            slack = self.capacity - self._used(items)
            bound = self._value(items) + float(prices @ slack)
            if bound < lowest:
                lowest, best, failed = bound, prices, 0
            elif failed < _PATIENCE:
                failed += 1
            else:
                length, failed, prices = length / 2, 0, best
                continue
            # a price of 0 cannot fall
            down = np.where((prices <= 0) & (slack > 0), 0.0, slack * scale)
            if bound - value <= ROUNDING * bound or not down.any():
                break
            step = length * (bound - value) / float(down @ down)
            prices = np.maximum(0.0, prices - step * scale * down)
        return float(lowest), best

    def _thinned(self, prices: _Floats) -> _Ints:
        """The choice at these prices. Groups do without their items until it fits: those that lose least
        first."""
        chosen = self._best(prices)
        used = self._used(chosen)
        worth = self.values[chosen] - prices[self.types[chosen]] * self.gpus[chosen]
        for group in np.argsort(worth, kind="stable").tolist():
            item = chosen[group]
            if used[self.types[item]] > self.capacity[self.types[item]] and self.gpus[item]:
                used[self.types[item]] -= self.gpus[item]
                chosen[group] = self.starts[group]
        return chosen

    def _fill_up(self, chosen: _Ints, losses: _Floats) -> None:
        """Give groups better items while there is room: the greatest gain per GPU first.

        Items of small losses come first, for these are what a good choice has. Then there is little room
        for the others, and looking at all of them takes long."""
        left = self.capacity - self._used(chosen)
        size = FIRST_FILLED
        while size < len(losses):
            self._fill_with(np.sort(np.argpartition(losses, size)[:size]), chosen, left)
            size *= FILL_GROWTH
        self._fill_with(np.arange(len(losses)), chosen, left)

    def _fill_with(self, items: _Ints, chosen: _Ints, left: _Ints) -> None:
        """Fill a choice up with some items."""
        while (better := self._best_step(items, chosen, left)) is not None:
            group = int(self.group_of[better])
            old = chosen[group]
            left[self.types[old]] += self.gpus[old]
            left[self.types[better]] -= self.gpus[better]
            chosen[group] = better

    def _best_step(self, items: _Ints, chosen: _Ints, left: _Ints) -> int | None:
        """Of these items, that which gains most per GPU over its group's present one, if it fits."""
        old = chosen[self.group_of[items]]
        types = self.types[items]
        more = self.gpus[items] - np.where(types == self.types[old], self.gpus[old], 0)
        gain = self.values[items] - self.values[old]
        fits = (more <= left[types]) & (gain > 1e-12)
        if not fits.any():
            return None
        return int(items[np.argmax(np.where(fits, gain / np.maximum(1, more), -np.inf))])

    def _try_core(self, chosen: _Ints, core: _Ints) -> bool:
        """Make the choice the best one in which each group's item is from `core` (in order), or stays.

        Returns whether this was tried: it may take too long."""
        if not len(core):
            return True
        groups, members = open_items(chosen, core, self.group_of)
        items = [self._undominated(each) for each in members]
        room = (self.capacity - self._used(chosen) + self._used(chosen[groups])).tolist()
        columns = [CoreGroup(self.types[each], self.gpus[each], self.values[each]) for each in items]
        if cells(columns, room) > MOST_CELLS:
            return False
        chosen[groups] = [each[item] for each, item in zip(items, best_of(columns, room), strict=True)]
        return True

    def _undominated(self, items: _Ints) -> _Ints:
        """Items of one group without those that are worth no more than one of as few GPUs of the same
        type."""
        order = items[np.lexsort((-self.values[items], self.gpus[items], self.types[items]))]
        kept: list[int] = []
        for item in order.tolist():
            same_type = kept and self.types[kept[-1]] == self.types[item]
            if not same_type or self.values[item] > self.values[kept[-1]]:
                kept.append(item)
        return np.array(kept, np.int64)
