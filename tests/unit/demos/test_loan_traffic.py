"""The demo's day: it begins in the evening, has a deep night with a spike in it, and a noon."""

from __future__ import annotations

import pytest

from flexo_demos.loans.story import Plot
from flexo_demos.loans.traffic import Traffic

pytestmark = pytest.mark.thorough

DAY = Traffic(servers=4, day_s=240, spike_at=75, spike_s=12, spike_servers=2)


def test_the_night_needs_nothing_and_noon_all_but_one() -> None:
    assert [DAY.needed(at) for at in (0, 72, 192)] == [2, 0, 3]


def test_a_spike_comes_at_once_and_goes_at_once() -> None:
    assert [DAY.needed(at) for at in (74.9, 75, 86.9, 87)] == [0, 2, 2, 0]


def test_more_than_all_servers_are_never_needed() -> None:
    crowded = Traffic(servers=2, day_s=240, spike_at=0, spike_s=240, spike_servers=5)
    assert {crowded.needed(at) for at in range(240)} == {2}


def test_the_demos_own_day_lends_all_but_the_headroom_and_wants_all_of_it_back() -> None:
    traffic = Plot().traffic
    needed = [traffic.needed(at) for at in range(int(traffic.day_s))]
    assert min(needed) == 0
    assert max(needed) == traffic.servers - 1  # with one server as headroom every server is needed
