"""make bench-price: which simulations it makes, how it goes on after an end, and what its JSON says."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_sia import write_artifact

from flexo.policies import registry
from flexo_bench.papers.pollux import PUBLISHED
from flexo_bench.price import __main__ as bench
from flexo_bench.price import cases, picture
from flexo_bench.price.cases import Case, Folders
from flexo_bench.price.replay import Replayed
from flexo_bench.price.report import Found, SiaMeans, SiaSet, as_json, show
from flexo_bench.price.runs import Outcome, Runs, code_now
from flexo_simulation.costs import Costs

pytestmark = pytest.mark.thorough

CASE = Case("mixed", "philly", 1, "own", "goodput")
POLLUX_1_S = PUBLISHED["Pollux"][0]


def outcome(jct_s: float = 3600.0) -> Outcome:
    return Outcome(160, 160, jct_s, 2 * jct_s, 3 * jct_s, 1.5, 0.1, 10.0, 5, 0.1)


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Calls the benchmark, which finds no traces and writes to a folder of the test. Returns its JSON."""
    monkeypatch.setattr(bench, "TRACES", tmp_path / "traces")
    monkeypatch.setattr(bench, "BENCH", tmp_path / "bench")
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "bench" / "price.json")
    monkeypatch.setattr(bench, "PICTURE", tmp_path / "bench" / "price.png")
    monkeypatch.setattr(bench, "RUNS", tmp_path / "bench" / "price-runs.jsonl")

    def call(*words: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["bench-price", "--processes", "1", *map(str, words)])
        bench.main()
        return json.loads((tmp_path / "bench" / "price.json").read_text())

    return call


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
    assert (place["jct_h"], place["seeds_below_sia"], place["seeds"]) == (1.0, 1, 2)
    figures = ("p99_h", "makespan_h", "worst_fairness", "unfair_share", "gpu_h", "changes")
    assert [place[name] for name in figures] == pytest.approx([2.0, 3.0, 1.5, 0.1, 10.0, 5.0])


def test_without_a_log_of_sia_for_each_workload_nothing_is_counted():
    known = {Case("mixed", "saturn", number, "own", "goodput"): outcome() for number in (6, 7)}
    told = as_json(known, {SiaSet("mixed", "saturn", 6): 1.0}, {}, "a")
    assert told["sia"]["mixed"]["saturn"]["own"]["goodput"]["seeds_below_sia"] is None


def test_a_mean_of_fewer_workloads_than_others_says_so():
    console = Console(width=120, record=True, file=io.StringIO())
    known = {Case("mixed", "saturn", number, "own", "goodput"): outcome() for number in (6, 7)}
    show(known | {Case("mixed", "saturn", 6, "own", "fifo"): outcome()}, {}, {}, console)
    text = console.export_text()
    assert "1.000 (1 of 2)" in text
    assert "fifo (1 of 2)" in text


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


def test_what_is_left_out_is_said_and_is_empty(called, capsys: pytest.CaptureFixture[str]):
    written = called()
    assert (written["pollux"], written["sia"]) == ({"declared": {}, "undeclared": {}}, {})
    said = capsys.readouterr().err
    assert "Pollux' workloads are left out: they would lie at" in said
    assert "SIA=DIR" in said


def test_a_folder_that_is_not_the_artifact_ends_the_bench(called, tmp_path: Path):
    with pytest.raises(SystemExit, match="is not the folder of siasosp23/artifacts"):
        called("--sia", tmp_path)


def test_a_second_call_simulates_only_what_the_first_did_not(called, folders: Folders, capsys):
    words = ("--sia", folders.sia, "--quick", "--policies", "fifo", "--prices")
    first = called(*words, "30")["sia"]["equal"]["philly"]
    assert list(first) == ["30"]
    assert (first["30"]["fifo"]["seeds"], first["30"]["fifo"]["seeds_below_sia"]) == (1, None)
    capsys.readouterr()
    both = called(*words, "30", "own")["sia"]["equal"]["philly"]
    assert both["30"] == first["30"]
    assert both["own"]["fifo"]["jct_h"] == pytest.approx(first["30"]["fifo"]["jct_h"] + 90.0 / 3600.0)
    assert "1 of 1: philly 1, equal, price own: fifo" in capsys.readouterr().out


def size_of(found: Found, path: Path, sia_means: SiaMeans) -> tuple[int, int]:
    """Width and height of the picture, in pixels."""
    picture.draw(found, sia_means, path)
    drawn = path.read_bytes()
    assert drawn.startswith(b"\x89PNG")
    return int.from_bytes(drawn[16:20]), int.from_bytes(drawn[20:24])


def priced(cluster: str, trace: str, *prices: str) -> dict[Case, Outcome]:
    policies = ("goodput", "lyra", "fifo")
    return {Case(cluster, trace, 1, price, each): outcome() for price in prices for each in policies}


def test_the_picture_has_lines_for_a_trace_of_many_prices_and_bars_for_those_of_few(tmp_path: Path):
    path, means = tmp_path / "price.png", {SiaSet("mixed", "saturn", 1): 3600.0}
    pollux, saturn = priced("equal", "pollux", *cases.PRICES), priced("mixed", "saturn", *cases.PRICES)
    one, low = size_of(pollux, path, means)
    assert size_of(pollux | saturn, path, means) == (pytest.approx(2 * one, abs=2), low), "a panel more"
    few = priced("mixed", "saturn", "0.03", cases.OWN)
    with_bars = size_of(pollux | few, path, means)
    assert with_bars == (pytest.approx(2 * one, abs=2), low)
    more = few | priced("equal", "philly", "0.03", cases.OWN)
    assert size_of(pollux | more, path, means) == with_bars, "bars share one panel"
    assert size_of({CASE: outcome()}, path, {}) == (one, low), "one case is a panel of bars"


def test_the_picture_has_at_most_three_panels_in_a_row_and_the_others_below(tmp_path: Path):
    path = tmp_path / "price.png"
    found = priced("equal", "pollux", *cases.PRICES)
    one, low = size_of(found, path, {})
    others = (("equal", "philly"), ("mixed", "philly"), ("mixed", "saturn"), ("mixed", "newtrace"))
    columns = []
    for cluster, trace in others:
        found |= priced(cluster, trace, *cases.PRICES)
        wide, high = size_of(found, path, {})
        columns.append(round(wide / one))
        assert high == low if len(columns) < 3 else low < high < 2 * low
    assert columns == [2, 3, 2, 3]


def test_a_call_for_other_traces_keeps_the_replays_of_earlier_calls(called, folders: Folders):
    assert folders.sia is not None
    log = folders.sia / "logs" / "equal" / "philly" / "workload-1.log"
    log.parent.mkdir(parents=True)
    job = {"name": "bert-0", "cluster": "aws", "placement": [1], "batch_size": 16, "submission_time": 53.5}
    rounds = [(60, job | {"completion_time": None}), (720, job | {"completion_time": 706.0})]
    log.write_text(
        "".join(json.dumps({"timestamp": at, "submitted_jobs": [each]}) + "\n" for at, each in rounds)
    )
    words = ("--sia", folders.sia, "--replay-only", "--traces")
    replayed = called(*words, "philly")["replay"]
    assert replayed["philly 1, equal"]["difference"] == pytest.approx(0.0)
    assert called(*words, "pollux")["replay"] == replayed


def test_workloads_for_tuning_are_not_mixed_with_those_that_are_reported(called, folders: Folders):
    runs = Runs(bench.RUNS, code_now())
    for number, hours in ((1, 1.0), (6, 2.0)):
        runs.add(Case("mixed", "saturn", number, "own", "goodput"), outcome(3600.0 * hours))
    words = ("--sia", folders.sia, "--replay-only")
    for more, hours in (((), 2.0), (("--tuning",), 1.0)):
        place = called(*words, *more)["sia"]["mixed"]["saturn"]["own"]["goodput"]
        assert (place["jct_h"], place["seeds"]) == (hours, 1)


def test_other_settings_have_rows_of_their_own(called, folders: Folders):
    words = ("--sia", folders.sia, "--quick", "--policies", "goodput", "--prices", "30")
    usual = called(*words)["sia"]["equal"]["philly"]["30"]
    both = called(*words, "--set", "alpha=0.4", "growth=4")["sia"]["equal"]["philly"]["30"]
    assert usual.keys() == {"goodput", "goodput-undeclared"}
    assert both.keys() == {*usual, *(f"{each} alpha=0.4 growth=4" for each in usual)}
    assert {each: both[each] for each in usual} == usual


def test_a_setting_that_is_none_or_that_a_policy_has_not_is_refused(called, folders: Folders, capsys):
    words = ("--sia", folders.sia, "--quick", "--policies", "goodput", "--prices", "30", "--set")
    with pytest.raises(SystemExit):
        called(*words, "alpha")
    assert "KEY=VALUE, such as alpha=0.4, is allowed" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="alhpa"):
        called(*words, "alhpa=0.4")
