"""Priorities that put jobs in an order, and how few of them change."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from flexo.clusters.slurm.priorities import BAND

BASIC_FIRST = 0xFFFF0000
"""What priority/basic gives to the first job."""
SLURMS_LIMIT = 0xFFFFFFFD
LOWEST, HIGHEST = BAND.lowest, BAND.highest
priorities = st.one_of(
    st.integers(1, 5_000), st.integers(LOWEST, LOWEST + 40), st.integers(HIGHEST - 40, HIGHEST)
)


def test_the_band_is_above_what_slurm_gives_by_itself_and_below_its_limit():
    assert BASIC_FIRST < LOWEST < HIGHEST < SLURMS_LIMIT - 1_000


@given(st.lists(priorities, max_size=60))
def test_priorities_fall_from_each_to_the_next_within_the_band_and_stay_once_they_are_set(now):
    wanted = BAND.arrange(now)
    assert len(wanted) == len(now)
    assert all(priority in BAND for priority in wanted)
    assert all(first > second for first, second in pairwise(wanted))
    assert BAND.arrange(wanted) == wanted


@given(st.lists(st.integers(LOWEST + 2_000, HIGHEST - 2_000), min_size=1, max_size=9, unique=True))
def test_as_many_as_can_be_keep_theirs(now):
    kept = sum(before == after for before, after in zip(now, BAND.arrange(now), strict=True))
    falling = [
        size
        for size in range(1, len(now) + 1)
        for some in combinations(now, size)
        if all(first > second for first, second in pairwise(some))
    ]
    crowded = any(first - second <= len(now) for first, second in pairwise(sorted(now, reverse=True)))
    assert kept == max(falling) or crowded


def test_a_newcomer_anywhere_changes_nobody_elses():
    settled = BAND.arrange([100] * 20)
    for place in range(21):
        now = [*settled[:place], 5, *settled[place:]]
        wanted = BAND.arrange(now)
        assert wanted[:place] + wanted[place + 1 :] == settled


def test_where_a_gap_is_full_all_are_spread_anew():
    wanted = BAND.arrange([HIGHEST, 5, HIGHEST - 1])
    assert wanted[0] - wanted[1] > 1
    assert wanted[1] - wanted[2] > 1


def test_over_a_long_time_hardly_more_is_changed_than_jobs_that_come():
    dice = random.Random(4)
    queue, changed = [], 0
    for _ in range(3_000):
        if len(queue) > 80:
            del queue[dice.choice((0, 0, 0, dice.randrange(len(queue))))]
        queue.insert(dice.choice((0, len(queue), dice.randrange(len(queue) + 1))), 7)
        wanted = BAND.arrange(queue)
        changed += sum(before != after for before, after in zip(queue, wanted, strict=True))
        queue = wanted
    assert changed < 2 * 3_000
