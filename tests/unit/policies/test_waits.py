"""How long a base would wait for GPUs: runs give them back, and those that go first take theirs."""

from __future__ import annotations

import math

from flexo.policies.resize_benefit import WaitModel

NOW = 1000.0


def test_it_takes_until_enough_runs_have_ended():
    waits = WaitModel(NOW, 1, [(NOW + 30, 1), (NOW + 10, 1), (NOW + 20, 4)])
    assert [waits.for_s(gpus) for gpus in (1, 2, 3, 7, 8)] == [0.0, 10.0, 20.0, 30.0, math.inf]
    assert waits.for_s(2) == 10.0, "asking changes nothing"


def test_those_that_go_first_take_theirs_and_give_them_back():
    waits = WaitModel(NOW, 0, [(NOW + 10, 2), (NOW + 100, 2)])
    waits.waits(2, 50.0)
    assert [waits.for_s(gpus) for gpus in (1, 2, 4)] == [60.0, 60.0, 100.0]
    waits.waits(4, 1000.0)
    assert waits.for_s(1) == 1100.0


def test_one_that_starts_at_once_takes_what_is_free():
    waits = WaitModel(NOW, 2, [(NOW + 100, 2)])
    waits.starts(2, NOW + 40)
    assert waits.for_s(1) == 40.0


def test_one_that_never_fits_holds_nobody_up_for_less_than_ever():
    waits = WaitModel(NOW, 0, [(NOW + 10, 2)])
    waits.waits(5, 1.0)
    assert waits.for_s(1) == math.inf
