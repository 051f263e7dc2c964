"""The multiple-choice knapsack: at most one item of each group, of the greatest value within a capacity.

Lyra's phase 2 (slides, "Resource Allocation of Flexible Demand"). A group is a job, and an item is one size
that the job could have. The item's weight is its GPUs, and its value the running time that it saves. The
problem is NP-hard in general. It is solved as in Pisinger, "A minimal algorithm for the multiple-choice
knapsack problem" (1995):

1. Solve the Lagrangian dual, min over p of p * capacity + sum over groups of max(value - p * weight). It is
   as low as the linear relaxation (Dyer 1984, Zemel 1984), and bounds every choice from above.
2. Take the best choice at that price, and fill it up greedily.
3. Run a dynamic program over a core: the items whose loss at that price is least. The core grows until no
   item outside it can be part of a better choice. Then the choice is proven to be optimal. Problems beyond
   EXACT_CELLS stop as soon as the bound proves the choice to be within SMALL_GAP of the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from flexo.policies.knapsack_core import (
    CORE_GROWTH,
    FIRST_CORE,
    ROUNDING,
    CoreGroup,
    best_of,
    least,
    open_items,
)
from flexo_protos.resources import Amount

EXACT_CELLS = 50_000_000
"""The product of items and capacity up to which the choice is always optimal."""
SMALL_GAP = 0.001
"""The largest gap between choice and bound, as a part of the bound, for problems beyond EXACT_CELLS."""


_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """Items of which at most one is chosen. Weights are not negative; a value of -inf bars an item."""

    weights: Sequence[Amount] | _Ints
    """The weight of each item. An array has whole numbers, or fractions as objects."""
    values: Sequence[float] | _Floats


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen items, and how good the choice is proven to be."""

    items: tuple[int, ...]
    """Per group: the index of its item; -1: none."""
    value: float
    weight: Amount
    bound: float
    """The upper bound: no choice within the capacity is worth more."""

    @property
    def gap(self) -> float:
        """The most that the best choice may be worth beyond this one, as a part of the bound; 0: this is the
        best."""
        return 0.0 if self.bound <= self.value else (self.bound - self.value) / self.bound


def choose(groups: Sequence[Group], capacity: Amount) -> Choice:
    """The choice of greatest value whose weights sum to at most `capacity` (not negative).

    The choice is optimal if items times capacity is at most EXACT_CELLS; else its gap is at most SMALL_GAP.
    Equal arguments give equal results. Which of several equally good choices is returned is undefined.
    """
    if capacity < 0:
        raise ValueError(f"a knapsack of capacity {capacity}")
    if not groups:
        return Choice((), 0.0, 0, 0.0)
    parts = _common_denominator(groups)
    if parts > 1:
        whole = [Group([int(weight * parts) for weight in each.weights], each.values) for each in groups]
        found = choose(whole, int(capacity * parts))
        return replace(found, weight=Fraction(1, parts) * found.weight)
    return _Problem(groups, int(capacity)).solve()


def _common_denominator(groups: Sequence[Group]) -> int:
    """The common denominator of all weights, which are mostly whole numbers."""
    fractions = (
        weight.denominator
        for group in groups
        if not (isinstance(group.weights, np.ndarray) and group.weights.dtype.kind in "iu")
        for weight in group.weights
        if not isinstance(weight, int | np.integer)
    )
    return math.lcm(*fractions)


@dataclass(frozen=True, slots=True)
class _Priced:
    """The items that are best at one price of weight, one of each group."""

    items: _Ints
    weight: int
    value: float


class _Problem:
    """The items of all groups in one sequence. Each group begins with an empty item: the choice of none."""

    def __init__(self, groups: Sequence[Group], capacity: int) -> None:
        sizes = np.fromiter((len(group.weights) + 1 for group in groups), np.int64, len(groups))
        ends = np.cumsum(sizes)
        self.capacity = capacity
        self.starts: _Ints = ends - sizes
        self.sizes = sizes
        self.group_of: _Ints = np.repeat(np.arange(len(groups)), sizes)
        self.weights: _Ints = np.zeros(int(ends[-1]), np.int64)
        self.values: _Floats = np.zeros(int(ends[-1]), np.float64)
        filled = np.ones(int(ends[-1]), np.bool_)
        filled[self.starts] = False
        self.weights[filled] = np.concatenate([np.asarray(group.weights, np.int64) for group in groups])
        self.values[filled] = np.concatenate([np.asarray(group.values, np.float64) for group in groups])
        # an item that cannot be chosen at all would only weaken the bound
        self.values[self.weights > capacity] = -np.inf
        self.unit = max(1, int(np.gcd.reduce(self.weights)))
        self.weights //= self.unit
        self.capacity //= self.unit

    def solve(self) -> Choice:
        """Find the choice: price, greedy filling, cores."""
        price, bound, chosen = self._price()
        value = float(self.values[chosen].sum())
        losses = self._losses(price)
        exact_wanted = (len(self.weights) - len(self.starts)) * self.capacity <= EXACT_CELLS
        size = FIRST_CORE
        while True:
            if self._proven(bound, value, exact_wanted):
                return self._choice(chosen, bound)
            # an item whose loss is at least the choice's distance from the bound is in no better choice
            better = losses < bound - value
            better[chosen] = False
            core = np.flatnonzero(better)
            if not len(core):
                return self._choice(chosen, value)
            complete = len(core) <= size
            chosen = self._best_of_core(chosen, least(core, losses, size))
            value = float(self.values[chosen].sum())
            if complete:
                return self._choice(chosen, value)
            size *= CORE_GROWTH

    def _proven(self, bound: float, value: float, exact_wanted: bool) -> bool:
        allowed = ROUNDING if exact_wanted else SMALL_GAP
        return bound - value <= allowed * bound

    def _choice(self, chosen: _Ints, bound: float) -> Choice:
        value = float(self.values[chosen].sum())
        return Choice(
            tuple((chosen - self.starts - 1).tolist()),
            value,
            int(self.weights[chosen].sum()) * self.unit,
            value if bound - value <= ROUNDING * bound else bound,
        )

    def _at(self, price: float) -> _Priced:
        """The best item of each group if weight costs `price`; of equally good items, the first."""
        worth = self.values - price * self.weights
        best = np.maximum.reduceat(worth, self.starts)
        hits = np.flatnonzero(worth == np.repeat(best, self.sizes))
        return self._priced(hits[np.searchsorted(hits, self.starts)])

    def _priced(self, items: _Ints) -> _Priced:
        return _Priced(items, int(self.weights[items].sum()), float(self.values[items].sum()))

    def _price(self) -> tuple[float, float, _Ints]:
        """The price of weight at which the bound is lowest, that bound, and the choice filled up greedily.

        The bound is a convex, piecewise linear function of the price. Two of its pieces enclose the minimum.
        At the price where these pieces meet, another piece may lie above them: it replaces one of them, until
        there is no such piece.
        """
        greedy = self._at(0.0)
        if greedy.weight <= self.capacity:
            return 0.0, greedy.value, greedy.items
        weightless = np.where(self.weights == 0, self.values, -np.inf)
        best = np.maximum.reduceat(weightless, self.starts)
        hits = np.flatnonzero(weightless == np.repeat(best, self.sizes))
        thrifty = self._priced(hits[np.searchsorted(hits, self.starts)])
        while True:
            price = (greedy.value - thrifty.value) / (greedy.weight - thrifty.weight)
            meet = thrifty.value + price * (self.capacity - thrifty.weight)
            between = self._at(price)
            bound = between.value + price * (self.capacity - between.weight)
            if bound <= meet + ROUNDING * abs(meet) or between.weight in (greedy.weight, thrifty.weight):
                return price, max(bound, meet), self._filled(thrifty, greedy)
            if between.weight <= self.capacity:
                thrifty = between
            else:
                greedy = between

    def _filled(self, thrifty: _Priced, greedy: _Priced) -> _Ints:
        """The thrifty choice, with items of the greedy one in as many groups as there is room for."""
        chosen = thrifty.items.copy()
        left = self.capacity - thrifty.weight
        differ = np.flatnonzero(thrifty.items != greedy.items)
        more = self.weights[greedy.items[differ]] - self.weights[thrifty.items[differ]]
        for group, extra in zip(differ.tolist(), more.tolist(), strict=True):
            if extra <= left:
                chosen[group] = greedy.items[group]
                left -= extra
        return chosen

    def _losses(self, price: float) -> _Floats:
        """Per item: how far the bound falls if the item is chosen. No choice with it is worth more than the
        bound less this."""
        worth = self.values - price * self.weights
        return np.repeat(np.maximum.reduceat(worth, self.starts), self.sizes) - worth

    def _best_of_core(self, chosen: _Ints, core: _Ints) -> _Ints:
        """The best choice in which each group's item is from `core` (in order), or stays as in `chosen`."""
        groups, members = open_items(chosen, core, self.group_of)
        lightest = np.array([int(self.weights[items].min()) for items in members])
        fixed = int(self.weights[chosen].sum() - self.weights[chosen[groups]].sum())
        room = self.capacity - fixed - int(lightest.sum())
        beyond = [
            CoreGroup(np.zeros_like(items), self.weights[items] - light, self.values[items])
            for items, light in zip(members, lightest.tolist(), strict=True)
        ]
        result = chosen.copy()
        result[groups] = [items[item] for items, item in zip(members, best_of(beyond, (room,)), strict=True)]
        return result
