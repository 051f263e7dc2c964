"""Amoeba's figure 2a on a small trace: each GPU's interval counts, and peak hours have few idle GPUs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from flexo_bench.papers import idle
from flexo_bench.papers.figures import Row, Run
from flexo_simulation.comparison import run_trials
from flexo_simulation.idle_intervals import Order

RUN: Run = lambda trials: run_trials(trials, 1, lambda *_: None)  # noqa: E731
HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
LAST = Order.LAST.value


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The rows for 400 GPUs of a trace of these jobs: submission and duration in seconds, GPUs."""
    monkeypatch.setattr(idle, "CLUSTERS", (400,))

    def compare(jobs: list[tuple[int, int, int]]) -> dict[str, Row]:
        path = tmp_path / "philly" / "philly.csv"
        path.parent.mkdir()
        path.write_text(HEADER + "".join(f"{at},{run_s},{gpus},0,vc\n" for at, run_s, gpus in jobs))
        (table,) = idle.compare(RUN, tmp_path, None).tables
        return {row.label: row for row in table.rows}

    return compare


def figures(row: Row) -> dict[str, float]:
    return {column: figure.middle for column, figure in zip(idle.COLUMNS, row.figures, strict=True)}


def test_each_gpu_of_an_interval_counts_and_short_ones_are_told_in_number_and_in_time(rows):
    found = rows([(0, 100, 400), (160, 100, 400), (1000, 10, 1)])
    told = figures(found[f"all hours: {LAST}"])
    assert told["intervals"] == 800
    assert told["below 1 min, %"] == 0
    assert told["below 4 min, %"] == 50
    assert told["below 15 min, %"] == 100
    assert told["idle time in those below 4 min, %"] == pytest.approx(100 * 60 / (60 + 740))
    peak = figures(found[f"peak hours: {LAST}"])
    assert peak["intervals"] == 0
    assert math.isnan(peak["below 4 min, %"])


def test_intervals_in_peak_hours_stand_beside_the_printed_shares(rows):
    found = rows([(0, 7200, 390), (0, 1800, 10), (1920, 5280, 10), (9000, 60, 1)])
    row = found[f"peak hours: {LAST}"]
    assert figures(row)["intervals"] == 10
    printed = {column: each.paper for column, each in zip(idle.COLUMNS, row.figures, strict=True)}
    assert printed["below 4 min, %"] == 39.62
    assert printed["idle time in those below 4 min, %"] == 41.5
