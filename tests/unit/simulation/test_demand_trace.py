"""Demand of an inference cluster over time: steps from a file, with every mistake named, or made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexo.loaning.diurnal import Diurnal
from flexo_simulation.demand_trace import DemandTrace, made_up, read_demand
from flexo_simulation.formats.errors import BadTrace

STEPS = DemandTrace("steps", (0.0, 10.0, 20.0), (3.0, 5.5, 0.0))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    return path


def test_a_step_lasts_until_the_next_and_the_ends_go_on():
    assert [STEPS.at(now) for now in (-5.0, 0.0, 9.9, 10.0, 20.0, 1e9)] == [3.0, 3.0, 3.0, 5.5, 0.0, 0.0]


def test_changes_are_those_after_one_instant_and_up_to_another():
    assert STEPS.between(0.0, 10.0) == ((10.0, 5.5),)
    assert STEPS.between(10.0, 19.9) == ()
    assert STEPS.between(-1.0, 99.0) == ((0.0, 3.0), (10.0, 5.5), (20.0, 0.0))


def test_a_file_is_read_with_columns_in_any_order_and_comments(tmp_path: Path):
    path = written(tmp_path, "# mine\nservers,time,note\n2.5,0,x\n4,3600,y\n")
    assert read_demand(path) == DemandTrace(str(path), (0.0, 3600.0), (2.5, 4.0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,servers\n0,-1\n", "2: servers is '-1': it takes a number of servers from 0"),
        ("time,servers\n0,\n", "2: servers is nothing: it takes a number of servers from 0"),
        ("time,servers\n0,nan\n", "2: servers is 'nan'"),
        ("time,servers\nnoon,3\n", "2: time is 'noon': it takes seconds since the first submission"),
        ("time,servers\n5,1\n5,2\n", "3: time is 5, not after the 5 before it"),
        ("time,servers\n", "holds no demand; it takes lines of time and servers"),
        ("time\n1\n", "1: the header lacks servers; it has time"),
        ("", "is empty; it takes a header with time, servers"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_line_and_reason(tmp_path: Path, text: str, problem: str):
    with pytest.raises(BadTrace, match=problem):
        read_demand(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BadTrace, match="cannot be read: No such file"):
        read_demand(tmp_path / "none.csv")


def test_made_up_demand_is_that_of_its_seed_and_was_seen_before_it_begins():
    shape = Diurnal(servers=20)
    trace = made_up(shape, 3, days=2.0, seen_days=1.0)
    assert trace == made_up(shape, 3, days=2.0, seen_days=1.0)
    assert trace.servers != made_up(shape, 4, days=2.0, seen_days=1.0).servers
    assert trace.times[0] == -86_400.0
    assert trace.times[-1] == 2 * 86_400.0 - 300.0
    assert all(0.0 <= each <= 20.0 for each in trace.servers)
