"""make bench-price: which simulations it makes, how it goes on after an end, and what its JSON says."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from small_sia import write_artifact

from flexo.policies import registry
from flexo_bench.papers.pollux import PUBLISHED
from flexo_bench.price import cases
from flexo_bench.price.cases import Case, Folders
from flexo_bench.price.replay import Replayed
from flexo_bench.price.report import SiaSet, as_json, show
from flexo_bench.price.runs import Outcome, Runs
from flexo_simulation.costs import Costs

pytestmark = pytest.mark.thorough

CASE = Case("mixed", "philly", 1, "own", "goodput")
POLLUX_1_S = PUBLISHED["Pollux"][0]


def outcome(jct_s: float = 3600.0) -> Outcome:
    return Outcome(160, 160, jct_s, 2 * jct_s, 3 * jct_s, 10.0, 5, 0.1)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A tiny artifact, and no workloads of Pollux."""
    return Folders(tmp_path / "traces", write_artifact(tmp_path / "sia"))


def test_every_policy_is_simulated_at_every_price(folders: Folders):
    found = list(cases.sia_cases("equal", "philly", (1,), cases.PRICES))
    assert {case.policy for case in found} == set(registry.built_in("starts_jobs"))
    assert {case.price for case in found} == set(cases.PRICES)
    assert len(set(found)) == len(found)
    assert {case.label for case in found if not case.declared} == {"goodput-undeclared"}


def test_without_the_artifact_only_polluxs_workloads_are_simulated(tmp_path: Path):
    found = list(cases.chosen(Folders(tmp_path, None), (*cases.PRICES, "own"), quick=False, tuning=False))
    assert {case.trace for case in found} == {"pollux"}
    assert "own" not in {case.price for case in found}


def test_saturn_and_newtrace_are_reported_on_workloads_that_nothing_is_tuned_on(folders: Folders):
    for tuning, numbers in ((True, {1, 2, 3, 4, 5}), (False, {6, 7, 8, 9, 10})):
        found = list(cases.chosen(folders, ("own",), quick=False, tuning=tuning))
        assert {case.number for case in found if case.trace in ("saturn", "newtrace")} == numbers
        assert {case.cluster for case in found if case.trace in ("saturn", "newtrace")} == {"mixed"}


def test_a_price_goes_before_the_costs_of_the_artifact_and_own_is_theirs(folders: Folders):
    own = cases.trial(CASE, folders)
    assert {job.costs for job in own.workload.jobs} == {Costs(start_s=120.0, resize_s=120.0)}
    ten = cases.trial(Case("mixed", "philly", 1, "10", "goodput"), folders)
    assert {job.costs for job in ten.workload.jobs} == {None}
    assert ten.scenario.costs == Costs(start_s=10.0, resize_s=10.0)


def test_a_bench_that_was_ended_goes_on_where_it_was(tmp_path: Path):
    path = tmp_path / "runs.jsonl"
    Runs(path, "a").add(CASE, outcome(7.0))
    with path.open("a") as file:
        file.write('{"code": "a", "case": {"clus')
    assert Runs(path, "a").known == {CASE: outcome(7.0)}


def test_what_another_version_of_the_code_found_does_not_count(tmp_path: Path):
    Runs(tmp_path / "runs.jsonl", "a").add(CASE, outcome())
    assert not Runs(tmp_path / "runs.jsonl", "b").known


def test_polluxs_ratio_is_to_its_published_means_of_the_same_workloads():
    known = {
        Case("equal", "pollux", 1, "30", "goodput"): outcome(POLLUX_1_S / 2),
        Case("equal", "pollux", 1, "30", "goodput", declared=False): outcome(POLLUX_1_S),
        Case("equal", "pollux", 1, "30", "fifo"): outcome(10 * POLLUX_1_S),
    }
    told = as_json(known, {}, {}, "a")
    assert told["pollux"] == {"declared": {"30": 0.5}, "undeclared": {"30": 1.0}}
    assert told["sia"] == {}
    assert len(told["runs"]) == 3


def test_workloads_on_which_sia_takes_longer_are_counted():
    known = {Case("mixed", "saturn", number, "own", "goodput"): outcome(3600.0) for number in (6, 7)}
    means = {SiaSet("mixed", "saturn", 6): 3601.0, SiaSet("mixed", "saturn", 7): 3600.0}
    place = as_json(known, means, {}, "a")["sia"]["mixed"]["saturn"]["own"]["goodput"]
    assert place == {"jct_h": 1.0, "seeds_below_sia": 1, "seeds": 2}


def test_without_a_log_of_sia_for_each_workload_nothing_is_counted():
    known = {Case("mixed", "saturn", number, "own", "goodput"): outcome() for number in (6, 7)}
    told = as_json(known, {SiaSet("mixed", "saturn", 6): 1.0}, {}, "a")
    assert told["sia"]["mixed"]["saturn"]["own"]["goodput"]["seeds_below_sia"] is None


def test_tables_have_a_row_for_each_policy_and_a_column_for_each_price():
    console = Console(width=120, record=True, file=io.StringIO())
    known = {CASE: outcome(1800.0), Case("mixed", "philly", 1, "0.03", "fifo"): outcome()}
    replays = {SiaSet("mixed", "philly", 1): Replayed(3600.0, 3636.0, 0)}
    show(known, {SiaSet("mixed", "philly", 1): 3600.0}, replays, console)
    text = console.export_text()
    assert "0.03 s" in text
    assert "goodput" in text
    assert "0.500" in text
    assert "(+1.00%)" in text
