"""Sets of ranges do what sets of numbers do."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.ranges import Range, RangeSet, join, length

ranges = st.builds(Range, st.integers(0, 40), st.integers(0, 12))


def numbers(of: Range) -> set[int]:
    return set(range(of.start, of.end))


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=30), ranges)
def test_a_set_of_ranges_is_a_set_of_numbers(changes, window):
    ours, plain = RangeSet(), set()
    for grows, each in changes:
        if grows:
            ours.add(each)
            plain |= numbers(each)
        else:
            ours.remove(each)
            plain -= numbers(each)
        assert {number for kept in ours for number in numbers(kept)} == plain
        assert ours.total == len(plain)
        kept = list(ours)
        assert all(one.end < other.start for one, other in itertools.pairwise(kept))
    inside = [number for piece in ours.within(window) for number in range(piece.start, piece.end)]
    assert inside == sorted(plain & numbers(window))
    if window.length:
        assert ours.holds(window) == (numbers(window) <= plain)
    assert ours.complement(60) == RangeSet(Range(number, 1) for number in set(range(60)) - plain)


@given(st.lists(ranges))
def test_joining_keeps_positions_and_their_order(pieces):
    joined = join(pieces)
    assert [at for each in joined for at in range(each.start, each.end)] == [
        at for each in pieces for at in range(each.start, each.end)
    ]
    assert length(joined) == length(pieces)
