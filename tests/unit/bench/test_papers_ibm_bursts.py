"""IBM's figures 7 and 9: the jobs of tables III and IV over time, and the printed ratios beside ours."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flexo_bench.papers import ibm_bursts
from flexo_bench.papers.ibm import Setup
from flexo_bench.papers.ibm_bursts import Burst
from flexo_simulation.comparison import Trial, run_trials
from flexo_simulation.results import SimulatedRun

pytestmark = pytest.mark.thorough

SEEDS = (1, 2)


def run(trials: Sequence[Trial]) -> tuple[SimulatedRun, ...]:
    return run_trials(trials, 1, lambda *_: None)


def test_the_ratios_are_those_of_the_curves_when_arrivals_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ibm_bursts, "FIGURES", (Burst("short", Setup(40, 60.0), 1.5),))
    ratios, curves = ibm_bursts.compare(run, SEEDS).tables
    when_arrivals_end = {row.label: row.figures[-2].middle for row in curves.rows}
    for row, rule in zip(ratios.rows, ("drop", "queue"), strict=True):
        more = when_arrivals_end[f"elastic, {rule}"] / when_arrivals_end[f"Random-BS, {rule}"]
        assert row.figures[0].middle == pytest.approx(more)
        assert row.figures[0].paper == 1.5


def test_a_queue_completes_all_jobs_in_the_end_and_drops_do_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ibm_bursts, "FIGURES", (Burst("short", Setup(40, 60.0), 1.5),))
    _, curves = ibm_bursts.compare(run, SEEDS).tables
    ends = {row.label: row.figures[-1].ours for row in curves.rows}
    assert ends["elastic, queue"] == ends["Random-BS, queue"] == ends["arrived"]
    assert all(some < every for some, every in zip(ends["Random-BS, drop"], ends["arrived"], strict=True))
