"""Computes priorities that put pending jobs in an order, within a band, with as few changes as possible."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_STEP: Final = 32
"""The distance between two neighbours if there is room, so that newcomers find a place between them."""


@dataclass(frozen=True, slots=True)
class PriorityBand:
    """The priorities from `lowest` to `highest`, which only flexod gives. A job with a higher one starts
    first."""

    lowest: int
    highest: int

    def __contains__(self, priority: int) -> bool:
        return self.lowest <= priority <= self.highest

    def arrange(self, now: Sequence[int]) -> list[int]:
        """The new priorities of jobs in their start order, from the priorities that they have `now`.

        They fall strictly, and all are in the band. As many jobs as possible keep theirs. If a newcomer finds
        no room between its neighbours, all jobs get new ones. At most `highest` - `lowest` jobs.
        """
        kept = self._longest_falling(now)
        return self._fill(now, kept) or self._spread(len(now))

    def _longest_falling(self, now: Sequence[int]) -> list[int]:
        """The positions of as many jobs of the band as possible whose priorities fall from each to the
        next."""
        lasts: list[int] = []  # for the best chain of each length: minus its last priority, rising
        ends: list[int] = []
        before: dict[int, int] = {}
        for position, priority in enumerate(now):
            if priority not in self:
                continue
            length = bisect_left(lasts, -priority)
            before[position] = ends[length - 1] if length else -1
            lasts[length:], ends[length:] = (
                [-priority, *lasts[length + 1 :]],
                [position, *ends[length + 1 :]],
            )
        chain: list[int] = []
        position = ends[-1] if ends else -1
        while position >= 0:
            chain.append(position)
            position = before[position]
        return chain[::-1]

    def _fill(self, now: Sequence[int], kept: Sequence[int]) -> list[int]:
        """Priorities for all jobs around those that are kept; [] if some jobs find no room."""
        if not kept:
            return []
        first, last = kept[0], kept[-1]
        tail = len(now) - 1 - last
        above, below = self.highest + 1 - now[first], now[last] - self.lowest + 1
        values = _between(now[first] + min(above, _STEP * (first + 1)), now[first], first)
        for left, right in pairwise(kept):
            values += [now[left], *_between(now[left], now[right], right - left - 1)]
        values += [now[last], *_between(now[last], now[last] - min(below, _STEP * (tail + 1)), tail)]
        return values if len(values) == len(now) else []

    def _spread(self, count: int) -> list[int]:
        """New priorities for all jobs, about the middle of the band."""
        step = min(_STEP, (self.highest - self.lowest) // max(1, count))
        highest = (self.highest + self.lowest) // 2 + step * count // 2
        return [highest - step * number for number in range(count)]


def _between(high: int, low: int, count: int) -> list[int]:
    """`count` priorities below `high` and above `low`, evenly spread; [] if there are not so many."""
    step = (high - low) // (count + 1)
    return [high - step * number for number in range(1, count + 1)] if step else []
