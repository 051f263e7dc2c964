"""Samples of each rank in a mini-batch: alike, or by how fast its GPU is."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from horovod_elastic.data.sizes import by_pace, next_shares, pace_of, shares_of_the_rest, steps_left

paces = st.lists(st.integers(1, 10**9), min_size=1, max_size=40)


@given(st.integers(1, 2000), st.integers(1, 12), st.integers(1, 40))
def test_the_sizes_of_an_epoch_add_up_and_are_even(samples, ranks, batch_size):
    left, steps, seen = samples, 0, []
    while left:
        shares = next_shares(left, batch_size, [0] * ranks)
        seen += shares
        assert max(shares) - min(shares) <= 1
        assert max(shares) <= max(batch_size, 2)
        if left >= ranks:
            assert min(shares) >= 1
        left -= sum(shares)
        steps += 1
    assert sum(seen) == samples
    assert steps == steps_left(samples, ranks, batch_size)
    full = sum(share == batch_size for share in seen)
    assert full >= (samples // (ranks * batch_size) - 1) * ranks


@given(st.integers(1, 5000), paces)
def test_sizes_add_up_and_nobody_gets_none_while_there_is_enough(samples, paces):
    sizes = by_pace(samples, paces)
    assert sum(sizes) == samples
    assert sum(size >= 1 for size in sizes) == min(samples, len(paces))


@given(st.integers(1, 5000), paces)
def test_sizes_are_less_than_a_sample_off_the_paces_but_for_those_that_get_one_at_least(samples, paces):
    sizes = by_pace(samples, paces)
    if samples <= len(paces):
        assert max(sizes) == 1
        return
    larger = [rank for rank, size in enumerate(sizes) if size > 1]
    left = samples - (len(paces) - len(larger))
    for rank in larger:
        due = Fraction(paces[rank] * left, sum(paces[other] for other in larger))
        assert abs(sizes[rank] - due) < 2, "one sample by rounding, one by those that got one at least"
    if all(pace * samples >= sum(paces) for pace in paces):
        for size, pace in zip(sizes, paces, strict=True):
            assert abs(size - Fraction(pace * samples, sum(paces))) < 1


@given(st.integers(1, 5000), paces)
def test_a_faster_rank_never_gets_less(samples, paces):
    if samples > len(paces):
        by_speed = sorted(zip(paces, by_pace(samples, paces), strict=True))
        assert [size for _, size in by_speed] == sorted(size for _, size in by_speed)


@given(st.integers(1, 5000), st.integers(1, 40), st.integers(0, 10**9))
def test_ranks_that_are_as_fast_take_what_they_took_without_a_word_of_speed(samples, ranks, pace):
    assert by_pace(samples, [pace] * ranks) == by_pace(samples, [0] * ranks)


@given(st.integers(1, 5000), paces, st.data())
def test_where_one_speed_is_not_known_all_count_alike(samples, paces, data):
    paces[data.draw(st.integers(0, len(paces) - 1))] = 0
    sizes = by_pace(samples, paces)
    assert max(sizes) - min(sizes) <= 1


def test_only_ratios_count():
    assert by_pace(16, [pace_of(1.0), pace_of(1 / 3)]) == [12, 4]
    assert by_pace(16, [pace_of(0.003), pace_of(0.001)]) == [12, 4]
    assert by_pace(32, [pace_of(speed) for speed in (3, 1, 1, 3)]) == [12, 4, 4, 12]


def test_a_rank_that_is_slower_by_orders_of_magnitude_gets_one_sample():
    assert by_pace(8, [1000, 1]) == [7, 1]
    assert by_pace(9, [1000, 1, 1, 1000]) == [4, 1, 1, 3]


@given(st.integers(1, 3000), st.integers(1, 20), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_an_epoch_adds_up_in_as_many_mini_batches_as_with_even_sizes(samples, batch_size, paces):
    left, steps, taken = samples, 0, [0] * len(paces)
    while left:
        shares = next_shares(left, batch_size, paces)
        assert min(shares) >= 1 or left < len(paces)
        taken = [one + more for one, more in zip(taken, shares, strict=True)]
        left -= sum(shares)
        steps += 1
    assert taken == shares_of_the_rest(samples, batch_size, paces)
    assert sum(taken) == samples
    assert steps == steps_left(samples, len(paces), batch_size)
