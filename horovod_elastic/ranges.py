"""Sets of samples as ranges of consecutive positions: what is consumed, held or left of a dataset. Pure.

The leader's ledger (shards.py) and the workers' ledger (data/allotment.py) use it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Range(NamedTuple):
    """The samples `start`, `start` + 1, ... of a dataset, `length` of them."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The first position after the range."""
        return self.start + self.length


class RangeSet:
    """A set of positions, kept as sorted, disjoint ranges that do not touch."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """Number of positions in the set."""
        for each in ranges:
            self.add(each)

    def __iter__(self) -> Iterator[Range]:
        for start, end in zip(self._starts, self._ends, strict=True):
            yield Range(start, end - start)

    def __len__(self) -> int:
        """Number of ranges in the set (`total` is the number of positions)."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and (self._starts, self._ends) == (other._starts, other._ends)

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def copy(self) -> RangeSet:
        """A copy of the set."""
        other = RangeSet()
        other._starts, other._ends, other.total = self._starts[:], self._ends[:], self.total
        return other

    def add(self, new: Range) -> None:
        """Add all positions of `new`. Some may be in the set already."""
        if new.length <= 0:
            return
        start, end = new.start, new.end
        if not self._ends or start > self._ends[-1]:  # as when sorted ranges are added
            self._starts.append(start)
            self._ends.append(end)
            self.total += new.length
            return
        first = bisect_left(self._ends, start)  # the first range that `new` overlaps or touches
        after = bisect_right(self._starts, end)
        if first < after:
            start, end = min(start, self._starts[first]), max(end, self._ends[after - 1])
        gone = sum(self._ends[first:after]) - sum(self._starts[first:after])
        self._starts[first:after], self._ends[first:after] = [start], [end]
        self.total += end - start - gone

    def remove(self, old: Range) -> None:
        """Remove all positions of `old`. Some may not be in the set."""
        start, end = old.start, old.end
        first = bisect_right(self._ends, start)  # the first range that shares a position with `old`
        after = bisect_left(self._starts, end)
        if old.length <= 0 or first >= after:
            return
        left, right = (self._starts[first], start), (end, self._ends[after - 1])
        kept = [(low, high) for low, high in (left, right) if low < high]
        gone = sum(self._ends[first:after]) - sum(self._starts[first:after])
        self._starts[first:after] = [low for low, _ in kept]
        self._ends[first:after] = [high for _, high in kept]
        self.total += sum(high - low for low, high in kept) - gone

    def holds(self, asked: Range) -> bool:
        """Whether all positions of `asked` are in the set."""
        at = bisect_right(self._starts, asked.start) - 1
        return at >= 0 and self._ends[at] >= asked.end

    def within(self, window: Range) -> list[Range]:
        """The positions of `window` that are in the set, as ranges in order."""
        found = []
        at = bisect_right(self._ends, window.start)
        while at < len(self._starts) and self._starts[at] < window.end:
            start = max(self._starts[at], window.start)
            found.append(Range(start, min(self._ends[at], window.end) - start))
            at += 1
        return found

    def complement(self, samples: int) -> RangeSet:
        """The positions of a dataset of `samples` samples that are not in the set."""
        edges = zip([0, *self._ends], [*self._starts, samples], strict=True)
        return RangeSet(Range(start, end - start) for start, end in edges)


def join(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The positions of `ranges` in the same order; ranges that directly follow each other become one."""
    joined: list[Range] = []
    for each in ranges:
        if joined and joined[-1].end == each.start:
            joined[-1] = Range(joined[-1].start, joined[-1].length + each.length)
        elif each.length > 0:
            joined.append(each)
    return tuple(joined)


def length(ranges: Iterable[Range]) -> int:
    """Number of samples in `ranges`."""
    return sum(each.length for each in ranges)
