"""IBM's figures 5, 6 and 8: a curve of jobs completed for each policy, and the printed ratios beside ours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from flexo_bench.papers import ibm_figures
from flexo_bench.papers.figures import Table
from flexo_bench.papers.ibm_figures import FIGURES, trials_of
from flexo_simulation.comparison import Trial, run_trials
from flexo_simulation.results import SimulatedRun

pytestmark = pytest.mark.thorough

SEEDS = (1, 2)


def run(trials: Sequence[Trial]) -> tuple[SimulatedRun, ...]:
    return run_trials(trials, 1, lambda *_: None)


def tables_of(monkeypatch: pytest.MonkeyPatch, *labels: str) -> tuple[Table, Table]:
    """The ratios and the curves of these panels, with arrivals for an hour."""
    panels = tuple(panel for panels in FIGURES.values() for panel in panels if panel.label in labels)
    monkeypatch.setattr(ibm_figures, "FIGURES", {"chosen": panels})
    monkeypatch.setattr(ibm_figures, "MINUTES", 60)
    monkeypatch.setattr(ibm_figures, "READINGS", (None, 5))
    ratios, _, curves = ibm_figures.compare(run, SEEDS).tables
    return ratios, curves


def middles(table: Table, label: str) -> list[float]:
    return [figure.middle for row in table.rows if row.label == label for figure in row.figures]


def test_a_curve_never_falls_and_ends_at_the_jobs_that_the_ratio_counts(monkeypatch: pytest.MonkeyPatch):
    ratios, curves = tables_of(monkeypatch, "5a: category 1")
    arrived, elastic, fixed = (row.label for row in curves.rows)
    for row in curves.rows:
        for seed in range(len(SEEDS)):
            counts = [figure.ours[seed] for figure in row.figures]
            assert counts == sorted(counts)
    ends = [middles(curves, label)[-1] for label in (arrived, elastic, fixed)]
    assert ends[0] >= ends[1] > ends[2] > 0
    assert ratios.rows[0].figures[0].middle == pytest.approx(ends[1] / ends[2])
    assert ratios.rows[0].figures[0].paper == 1.82


def test_jobs_of_one_batch_gain_nothing_by_elastic_batches(monkeypatch: pytest.MonkeyPatch):
    ratios, curves = tables_of(monkeypatch, "5d: category 4")
    assert middles(ratios, "5d: category 4")[0] == 1.0
    _, elastic, fixed = curves.rows
    assert elastic.figures == fixed.figures


def test_a_largest_batch_that_needs_more_gpus_than_a_job_may_have_is_never_completed(
    monkeypatch: pytest.MonkeyPatch,
):
    ratios, _ = tables_of(monkeypatch, "8a: Max-BS, high rate, category 1")
    assert middles(ratios, "8a: Max-BS, high rate, category 1")[-1] == math.inf


def test_labels_are_unique_so_that_the_json_loses_no_row():
    labels = [panel.label for panels in FIGURES.values() for panel in panels]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("k_max", [None, 10])
def test_both_policies_get_the_same_jobs(k_max: int | None):
    for panel in (each for panels in FIGURES.values() for each in panels):
        elastic, fixed = trials_of(panel, k_max, 1)
        assert elastic.workload == fixed.workload
        assert elastic.label != fixed.label
