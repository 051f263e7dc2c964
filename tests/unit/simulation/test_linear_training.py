"""Jobs of a known amount of work."""

from __future__ import annotations

import math

import pytest

from flexo.model.measured import Source
from flexo.model.training import NodeShare
from flexo.scalability.table import TableSpeed
from flexo_simulation.linear_training import LinearTraining

THREE = (NodeShare("a", 1), NodeShare("b", 2))


def test_without_a_speed_work_is_seconds_of_one_worker():
    run = LinearTraining(90.0).begin()
    assert run.time_left_s(THREE, 0) == 30.0
    assert run.advance(10.0, THREE, 0) == 10.0
    assert (run.remaining_work(), run.source, run.speed()) == (60.0, Source.ORACLE, None)
    assert run.time_left_s(THREE[:1], 0) == 60.0
    assert run.time_left_s((), 0) == math.inf


def test_it_trains_no_longer_than_to_its_end():
    run = LinearTraining(90.0).begin()
    assert run.advance(1000.0, THREE, 0) == pytest.approx(30.0)
    assert (run.finished, run.time_left_s(THREE, 0)) == (True, 0.0)


def test_what_sums_of_times_leave_over_is_no_work():
    run = LinearTraining(3.0).begin()
    for _ in range(10):
        run.advance(0.1, THREE, 0)
    assert run.finished


def test_with_a_table_it_goes_as_fast_as_that_says():
    speed = TableSpeed.of({1: 10.0, 2: 15.0, 4: 20.0})
    run = LinearTraining(300.0, speed).begin()
    assert run.time_left_s((NodeShare("a", 2),), 0) == pytest.approx(20.0)
    assert run.speed() == speed


def test_a_job_of_no_work_has_ended_before_it_began():
    assert LinearTraining(0.0).begin().finished
