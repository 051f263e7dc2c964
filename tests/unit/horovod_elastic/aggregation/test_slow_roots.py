"""A node notices which pool Aggregator makes all wait."""

from __future__ import annotations

from collections.abc import Mapping

from horovod_elastic.aggregation.slow_roots import LEAST_GAIN_S, ROUNDS, SlowRoot, SlowRoots

EQUAL = {4: 1, 5: 1, 6: 1, 7: 1}


def round_of(
    watched: SlowRoots, seconds: Mapping[int, float], shares: Mapping[int, int] = EQUAL, key: int = 0
) -> SlowRoot | None:
    """One round, in which each root's last part takes so long."""
    watched.begins(key, shares, 100.0)
    for root, each in seconds.items():
        watched.has_part(key, root, 100.0 + each / 2)
        watched.has_part(key, root, 100.0 + each)
    return watched.ends(key)


def test_a_root_that_makes_all_wait_round_after_round_is_found() -> None:
    watched, times = SlowRoots(), {4: 0.5, 5: 0.4, 6: 4.0, 7: 0.5}
    found = [round_of(watched, times) for _ in range(ROUNDS)]
    assert found[:-1] == [None] * (ROUNDS - 1)
    assert found[-1] == SlowRoot(6, 4.0, 0.5)


def test_one_good_round_begins_the_count_anew() -> None:
    watched, slow = SlowRoots(), {4: 0.5, 5: 0.4, 6: 4.0, 7: 0.5}
    for _ in range(ROUNDS - 1):
        round_of(watched, slow)
    round_of(watched, slow | {6: 0.6})
    assert [round_of(watched, slow) is not None for _ in range(ROUNDS)] == [False] * (ROUNDS - 1) + [True]


def test_roots_that_are_slow_by_turns_are_not_left_out() -> None:
    watched = SlowRoots()
    for number in range(4 * ROUNDS):
        slow = 4 + number % 2
        assert round_of(watched, {4: 0.5, 5: 0.5, 6: 0.5, 7: 0.5} | {slow: 4.0}) is None


def test_a_node_that_is_slow_delays_all_roots_alike() -> None:
    watched = SlowRoots()
    assert [round_of(watched, {4: 9.0, 5: 9.2, 6: 9.4, 7: 9.1}) for _ in range(ROUNDS)] == [None] * ROUNDS


def test_a_root_stays_if_the_others_could_not_do_its_work_sooner() -> None:
    """Of two, the other one would need twice its time."""
    two = {4: 1, 5: 1}
    for seconds, is_found in ((2.0 + LEAST_GAIN_S, True), (1.9 + LEAST_GAIN_S, False)):
        watched = SlowRoots()
        found = [round_of(watched, {4: 1.0, 5: seconds}, two) for _ in range(ROUNDS)]
        assert (found[-1] is not None) is is_found


def test_keys_with_too_few_parts_and_pools_of_one_say_nothing() -> None:
    watched = SlowRoots()
    for _ in range(2 * ROUNDS):
        assert round_of(watched, {4: 0.1, 6: 9.0}) is None
        assert round_of(watched, {4: 9.0}, {4: 1}) is None


def test_keys_that_are_summed_at_once_do_not_mix() -> None:
    watched = SlowRoots()
    watched.begins(0, {4: 1, 5: 1}, 100.0)
    watched.begins(1, {4: 1, 5: 1}, 105.0)
    for key, root, now in ((0, 4, 101.0), (0, 5, 101.1), (1, 4, 106.0), (1, 5, 106.1)):
        watched.has_part(key, root, now)
    assert watched.ends(0) is None
    assert watched.ends(1) is None
    assert watched.ends(1) is None, "it is over"
