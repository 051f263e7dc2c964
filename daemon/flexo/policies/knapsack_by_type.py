"""The multiple-choice knapsack with a capacity of each GPU type: at most one item of each group.

A group is a job, and an item is one size of the job on one GPU type. Each type has a price per GPU. At given
prices every group takes its best item, so that a decision for thousands of jobs is a few hundred passes over
an array. The prices are those of the Lagrangian dual, found type by type. The choice at these prices is then
thinned out until it fits, and filled up. It is not proven to be optimal, as that of `knapsack` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from flexo_protos.resources import Amount

_SWEEPS = 4
"""How often the price of each type is found again, with the prices of the others as they are by then."""
_HALVINGS = 24
"""Steps of the search for one price."""

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
        """Find prices, thin out, fill up."""
        prices = self._prices()
        chosen = self._best(prices)
        self._thin_out(chosen, prices)
        self._fill_up(chosen)
        return tuple((chosen - self.starts - 1).tolist())

    def _best(self, prices: _Floats) -> _Ints:
        """Each group's best item at these prices; of equally good items, the first."""
        worth, of_group = self._worth, self._best_of_group
        np.take(prices, self.types, out=worth, mode="clip")
        np.multiply(worth, self._weights, out=worth)
        np.subtract(self.values, worth, out=worth)
        np.take(np.maximum.reduceat(worth, self.starts), self.group_of, out=of_group, mode="clip")
        hits = np.flatnonzero(worth == of_group)
        return hits[np.searchsorted(hits, self.starts)]

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
        for sweep in range(_SWEEPS):
            before = prices.copy()
            for each in range(len(prices)):
                self._price(prices, each, highest)
            if sweep and np.allclose(prices, before, rtol=1e-6):
                break
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

    def _thin_out(self, chosen: _Ints, prices: _Floats) -> None:
        """Let groups do without their items until the choice fits: those that lose least per GPU first."""
        used = self._used(chosen)
        worth = self.values[chosen] - prices[self.types[chosen]] * self.gpus[chosen]
        for group in np.argsort(worth, kind="stable").tolist():
            item = chosen[group]
            if used[self.types[item]] > self.capacity[self.types[item]] and self.gpus[item]:
                used[self.types[item]] -= self.gpus[item]
                chosen[group] = self.starts[group]

    def _fill_up(self, chosen: _Ints) -> None:
        """Give groups better items while there is room: the greatest gain per GPU first."""
        left = self.capacity - self._used(chosen)
        while (better := self._best_step(chosen, left)) is not None:
            group = int(self.group_of[better])
            old = chosen[group]
            left[self.types[old]] += self.gpus[old]
            left[self.types[better]] -= self.gpus[better]
            chosen[group] = better

    def _best_step(self, chosen: _Ints, left: _Ints) -> int | None:
        """The item that gains most per GPU over its group's present one, if it fits."""
        old = chosen[self.group_of]
        given_back = np.where(self.types == self.types[old], self.gpus[old], 0)
        gain = self.values - self.values[old]
        fits = (self.gpus - given_back <= left[self.types]) & (gain > 1e-12)
        if not fits.any():
            return None
        per_gpu = np.where(fits, gain / np.maximum(1, self.gpus - given_back), -np.inf)
        return int(np.argmax(per_gpu))
