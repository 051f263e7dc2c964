"""Computes Slurm priorities that put pending jobs in an order, with as few changes as possible.

Slurm's own priorities are below the band, whichever plugin sets them: `priority/basic` counts down from
4294901760 (0xffff0000), and weights of `priority/multifactor` add up to less. So jobs that flexod has put in
order come before all others, and no job overtakes them by being new. Slurm's limit is above the band, with
room for priorities that administrators set by hand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

LOWEST: Final = 4_294_910_000
HIGHEST: Final = 4_294_960_000
_STEP: Final = 32
"""The distance between two neighbours if there is room, so that newcomers find a place between them."""


def in_band(priority: int) -> bool:
    """Whether flexod may have set `priority`."""
    return LOWEST <= priority <= HIGHEST


def arrange(now: Sequence[int]) -> list[int]:
    """The new priorities of jobs in their start order, from the priorities that they have `now`.

    They fall strictly, and all are in the band. As many jobs as possible keep theirs. If a newcomer finds no
    room between its neighbours, all jobs get new ones. At most HIGHEST - LOWEST jobs.
    """
    kept = _longest_falling(now)
    return _fill(now, kept) or _spread(len(now))


def _longest_falling(now: Sequence[int]) -> list[int]:
    """The positions of as many jobs of the band as possible whose priorities fall from each to the next."""
    lasts: list[int] = []  # for the best chain of each length: minus its last priority, rising
    ends: list[int] = []
    before: dict[int, int] = {}
    for position, priority in enumerate(now):
        if not in_band(priority):
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


def _fill(now: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Priorities for all jobs around those that are kept; [] if some jobs find no room."""
    if not kept:
        return []
    first, last = kept[0], kept[-1]
    tail = len(now) - 1 - last
    above, below = HIGHEST + 1 - now[first], now[last] - LOWEST + 1
    values = _between(now[first] + min(above, _STEP * (first + 1)), now[first], first)
    for left, right in pairwise(kept):
        values += [now[left], *_between(now[left], now[right], right - left - 1)]
    values += [now[last], *_between(now[last], now[last] - min(below, _STEP * (tail + 1)), tail)]
    return values if len(values) == len(now) else []


def _between(high: int, low: int, count: int) -> list[int]:
    """`count` priorities below `high` and above `low`, evenly spread; [] if there are not so many."""
    step = (high - low) // (count + 1)
    return [high - step * number for number in range(1, count + 1)] if step else []


def _spread(count: int) -> list[int]:
    """New priorities for all jobs, about the middle of the band."""
    step = min(_STEP, (HIGHEST - LOWEST) // max(1, count))
    highest = (HIGHEST + LOWEST) // 2 + step * count // 2
    return [highest - step * number for number in range(count)]
