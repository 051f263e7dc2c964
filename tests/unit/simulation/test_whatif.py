"""What is found in a dump: how large the cluster was, how near the simulation is, what elasticity changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dumps import dump, dump_of, line
from says import says

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.registry import make
from flexo_simulation import whatif_words
from flexo_simulation.about import About
from flexo_simulation.elasticity import Elasticity, made_elastic
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats.accounting import SLURM, AccountingDump, workload_of
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.sacct_dump import read_dump
from flexo_simulation.generate import Recipe, generate
from flexo_simulation.idle_gpus import idle_gpus
from flexo_simulation.scenario import Scenario
from flexo_simulation.whatif import (
    ENOUGH_JOBS,
    Findings,
    NotSimulated,
    Window,
    calibrate,
    case_of,
    peak_gpus,
    size_of,
    waits_of,
)
from flexo_simulation.whatif_page import write_page, write_whole

SCENARIO = Scenario((NodeGroup(4, 4),), estimates=Estimates(Mode.LIMIT))


def read(folder: Path, text: str) -> AccountingDump:
    path = folder / "dump.txt"
    path.write_text(text)
    return read_dump(path, ReadOptions())


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    """A dump of a cluster that did exactly what the simulation does."""
    jobs = generate(Recipe(jobs=300, gpus=16, seed=2, load=1.1, longest_s=40_000))
    really = simulate(jobs, make("fifo"), SCENARIO)
    return read(tmp_path_factory.mktemp("month"), dump_of(really, gpus_per_node=4))


def test_the_cluster_is_as_large_as_the_peak_needed(tmp_path):
    runs = read(
        tmp_path,
        dump(
            [
                line("1", submit=0, wait=0, elapsed=100, gpus=8, NNodes="2"),
                line("2", submit=50, wait=0, elapsed=100, gpus=2),
                line("3", submit=100, wait=0, elapsed=100, gpus=6, NNodes="3"),
            ]
        ),
    ).runs
    assert peak_gpus(runs) == 10
    size = size_of(runs, None, None)
    assert (size.nodes, size.gpus) == ((NodeGroup(3, 4),), 12)
    assert says(size.how, "4 GPUs a node", "the most")
    assert says(size.how, "3 nodes", "10 GPUs", "peak")


def test_a_size_that_is_said_counts(tmp_path):
    runs = read(tmp_path, dump([line(NNodes="")])).runs
    assert size_of(runs, 5, 2).nodes == (NodeGroup(5, 2),)
    assert "assumed" in size_of(runs, 5, None).how


def test_a_node_smaller_than_a_job_s_part_on_it_is_refused(tmp_path):
    runs = read(
        tmp_path,
        dump([line("7", submit=0, wait=0, elapsed=100, gpus=9, NNodes="2"), line("8", gpus=1, NNodes="1")]),
    ).runs
    with pytest.raises(BadTrace, match=r"--gpus-per-node 4: job 7 had 5 GPUs on one node; 5 and more"):
        size_of(runs, None, 4)
    assert size_of(runs, 2, 5).gpus == 10


def test_jobs_count_from_the_first_end_to_the_last_that_came(tmp_path):
    runs = read(
        tmp_path, dump([line("1", submit=0, wait=0, elapsed=500), line("2", submit=800, wait=0, elapsed=99)])
    ).runs
    window = Window.of(runs)
    assert (window.begin - window.zero, window.end - window.zero) == (500, 800)


def test_a_dump_of_one_job_has_a_window_too(tmp_path):
    window = Window.of(read(tmp_path, dump([line(wait=60, elapsed=600)])).runs)
    assert window.simulated == (0, 660)


def test_a_simulation_of_what_really_happened_is_as_near_as_can_be(month):
    again = simulate(workload_of(month), make("fifo"), SCENARIO)
    found = calibrate(month.runs, Window.of(month.runs), again)
    assert found is not None
    assert found.close_share == 1.0
    assert found.simulated.mean_h == pytest.approx(found.real.mean_h, abs=0.01)
    assert found.simulated_utilization == pytest.approx(found.real_utilization, abs=0.01)
    assert "near enough" in " ".join(whatif_words.trust(found, SLURM))


def test_a_simulation_that_is_far_from_what_happened_says_so(month):
    other = simulate(workload_of(month), make("srtf"), SCENARIO)
    found = calibrate(month.runs, Window.of(month.runs), other)
    assert found is not None
    assert found.mean_difference_h < 0
    words = " ".join(whatif_words.trust(found, SLURM))
    assert says(words, "far", "direction", "not as a size")
    assert "reservations" in words


def test_where_nobody_waited_elastic_jobs_could_only_be_done_sooner_not_begin_sooner(tmp_path):
    found = read(tmp_path, dump([line(str(n), submit=n * 2000, wait=0) for n in range(ENOUGH_JOBS + 1)]))
    outcome = simulate(workload_of(found), make("backfill"), SCENARIO)
    words = " ".join(whatif_words.trust(calibrate(found.runs, Window.of(found.runs), outcome), SLURM))
    assert says(words, "Nobody", "started", "no", "sooner")


@pytest.fixture(scope="module")
def findings(month):
    rigid = workload_of(month)
    window = Window.of(month.runs)
    elastic = made_elastic(rigid, Elasticity(share=1.0), seed=0)
    outcomes = [
        simulate(rigid, make("backfill"), SCENARIO),
        simulate(elastic, make("elastic-tiresias"), SCENARIO),
    ]
    size = size_of(month.runs, 4, 4)
    baseline = case_of(outcomes[0], "backfill", 0.0, window)
    cases = (case_of(outcomes[1], "elastic-tiresias", 1.0, window),)
    idle = idle_gpus(month.holders, SLURM, 4, 0.1)
    return Findings(
        SLURM, size, window.hours, calibrate(month.runs, window, outcomes[0]), baseline, cases, idle
    ), outcomes


def test_idle_gpus_and_waits_are_counted_in_the_window(findings, month):
    found, outcomes = findings
    base = found.baseline
    assert 0 < base.utilization < 1
    assert base.idle_gpu_h == pytest.approx((1 - base.utilization) * 16 * found.window_h)
    assert 0 <= base.idle_wanted_gpu_h <= base.idle_gpu_h
    begin, _ = Window.of(month.runs).simulated
    waits = [each.queue_s for each in outcomes[0].records if each.job.submitted_at >= begin]
    assert base.waited_h == pytest.approx(sum(waits) / 3600)


def test_figures_are_json_with_null_for_nothing(findings):
    found = findings[0].to_json()
    assert found["software"] == "Slurm"
    assert set(found) == {
        "software",
        "cluster",
        "window_h",
        "calibration",
        "baseline",
        "cases",
        "not_simulated",
        "idle",
    }
    assert set(found["idle"]["readings"]) == {"freed last, used first", "freed first, used first"}
    assert json.loads(json.dumps(found, allow_nan=False))["idle"]["gpus"] == 16
    assert found["cluster"]["gpus"] == 16


def test_the_table_begins_with_what_slurm_does_and_has_changes_against_it(findings):
    first, second = whatif_words.rows(findings[0])
    assert first[:2] == ("as Slurm does (backfill)", "none")
    assert second[0] == "elastic-tiresias"
    assert second[2].endswith("%)")
    too_small = replace(findings[0].cases[0], elastic_share=0.05, elastic_jobs=0, elastic_in_all=0)
    _, third = whatif_words.rows(replace(findings[0], cases=(too_small,)))
    assert third[1] == "5% (no job)"


@pytest.mark.parametrize(("shares", "named"), [((0.2,), "at 20%"), ((0.05, 0.2), "at 5 to 20%")])
def test_a_share_that_draws_no_job_is_said_to_show_the_policy_alone(findings, shares, named):
    case = replace(findings[0].cases[0], elastic_jobs=0, elastic_in_all=0)
    cases = tuple(replace(case, elastic_share=share) for share in shares)
    order, _, told, *_ = whatif_words.in_short(replace(findings[0], cases=cases))
    assert says(order, "no elastic job", "order of jobs alone")
    assert says(told, "No job is elastic", named, "alone")


def test_a_share_whose_jobs_are_all_not_counted_does_not_count_as_none(findings):
    alone = replace(findings[0].cases[0], elastic_share=0.0, elastic_jobs=0, elastic_in_all=0)
    case = replace(alone, elastic_share=0.2, elastic_in_all=3, waited_h=alone.waited_h + 9)
    found = replace(findings[0], cases=(alone, case))
    text = " ".join(whatif_words.in_short(found))
    assert "No job is elastic" not in text
    assert says(text, "20% (3 jobs, 0 counted)", "9 h more")
    assert text.count("no elastic job,") == 1


def test_shares_that_draw_the_same_jobs_are_one_line(findings):
    case = findings[0].cases[0]
    drawn = ((0.0, 0), (0.05, 1), (0.2, 1), (0.5, 9), (1.0, 9))
    cases = tuple(
        replace(case, elastic_share=share, elastic_jobs=jobs, elastic_in_all=jobs) for share, jobs in drawn
    )
    found = replace(findings[0], cases=cases)
    assert [row[1] for row in whatif_words.rows(found)] == [
        "none",
        "none",
        "5 to 20% (the same job)",
        "50 to 100% (the same 9 jobs)",
    ]
    assert [row.number for row in found.rows()] == [0, 1, 3]
    assert sum("elastic" in each for each in whatif_words.in_short(found)) == 3 + 1
    assert len(found.to_json()["cases"]) == 5


def test_shares_of_two_policies_are_never_one_line(findings):
    case = findings[0].cases[0]
    found = replace(findings[0], cases=(case, replace(case, policy="lyra")))
    assert len(found.rows()) == 2


def test_a_small_dump_is_called_too_small_before_any_figure(findings):
    calibration = findings[0].calibration
    first, *rest = whatif_words.in_short(
        replace(findings[0], calibration=replace(calibration, jobs=ENOUGH_JOBS - 1))
    )
    assert says(first, "too small", f"{ENOUGH_JOBS - 1} jobs", f"{ENOUGH_JOBS} GPU jobs")
    assert rest == list(whatif_words.in_short(findings[0]))
    assert calibration.jobs >= ENOUGH_JOBS
    assert not any("too small" in sentence for sentence in rest)


def test_what_the_order_of_jobs_does_alone_is_told_apart_from_elasticity(findings):
    case = findings[0].cases[0]
    alone = replace(case, elastic_share=0.0, elastic_jobs=0, elastic_in_all=0, waited_h=30.0)
    elastic = replace(case, elastic_share=0.2, elastic_jobs=9, elastic_in_all=9, waited_h=20.0)
    more = replace(elastic, elastic_share=1.0, elastic_jobs=20, elastic_in_all=20, waited_h=10.0)
    order, both, _, rest, *_ = whatif_words.in_short(replace(findings[0], cases=(alone, elastic, more)))
    assert says(order, "no elastic job", "order of jobs alone")
    assert says(both, "9 jobs", "20 h", "10 h less", "order alone", "(-33%)")
    assert says(rest, "20 jobs", "10 h", "20 h less", "order alone")
    unknown, *_ = whatif_words.in_short(replace(findings[0], cases=(elastic,)))
    assert not says(unknown, "order")


def test_jobs_that_are_not_counted_are_told_with_their_waits(findings):
    base = replace(findings[0].baseline, jobs=2, not_counted=7, not_counted_waited_h=5.0)
    case = replace(findings[0].cases[0], elastic_share=0.2, not_counted=7, not_counted_waited_h=8.0)
    *_, why, waits = whatif_words.in_short(replace(findings[0], baseline=base, cases=(case,)))
    assert says(why, "7 of 9 jobs", "first end")
    assert says(waits, "5 h", "8 h", "20% elastic")


def test_a_dump_that_is_too_small_gets_no_verdict(findings):
    small = replace(findings[0].calibration, jobs=ENOUGH_JOBS - 1)
    *_, last = whatif_words.trust(small, SLURM)
    assert says(last, "too small")
    assert "near enough" not in last


@pytest.mark.parametrize(
    ("simulated_h", "told"),
    [(2.0, "as long as"), (2.2, "12 min (10%) longer"), (1.8, "12 min (10%) shorter")],
)
def test_the_verdict_tells_the_difference_of_the_mean_waits_from_the_real_one(findings, simulated_h, told):
    known = findings[0].calibration
    near = replace(
        known, real=replace(known.real, mean_h=2.0), simulated=replace(known.real, mean_h=simulated_h)
    )
    *_, last = whatif_words.trust(near, SLURM)
    assert says(last, told)


def test_cases_that_were_left_out_are_named_with_the_option_that_simulates_them(findings, month, tmp_path):
    missing = (NotSimulated("lyra", 0.5), NotSimulated("lyra", 0.05), NotSimulated("greedy", 0.0))
    found = replace(findings[0], not_simulated=missing)
    assert says(whatif_words.not_simulated(found), "lyra with 50%, 5%", "greedy with 0%", "--within all")
    assert says(whatif_words.not_simulated(replace(found, at_work=True)), "still", "lyra with 50%, 5%")
    assert found.to_json()["not_simulated"][0] == {"policy": "lyra", "elastic_share": 0.5}
    write_page(found, month.runs, findings[1], About((), (), "flexo"), tmp_path / "p.html")
    assert says((tmp_path / "p.html").read_text(), "Not simulated", "lyra with 50%, 5%", "--within all")
    assert whatif_words.not_simulated(findings[0]) == ""


def test_a_page_is_written_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "p.html"
    write_whole("old", path)
    with pytest.raises(UnicodeEncodeError):
        write_whole("new \ud800", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_picture_of_waits_has_those_after_a_preemption(findings, month):
    outcome = findings[1][1]
    window = Window.of(month.runs)
    waits_h = sum(waits_of(outcome, window.among(outcome.records))) / 3600
    assert waits_h == pytest.approx(findings[0].cases[0].waited_h)


def test_the_picture_of_gpus_says_when_its_time_begins(month, tmp_path):
    assert Window.of(month.runs).since == "the first end of a job"
    one = Window.of(read(tmp_path, dump([line(wait=60, elapsed=600)])).runs)
    assert (one.since, one.until) == ("the first submission", "the last end of a job")


def test_equal_waits_are_called_equal():
    assert whatif_words.compared(2.0, 2.0, "h") == "as long"
    assert whatif_words.compared(1.0, 2.0, "h") == "1 h less (-50%)"


def test_the_page_answers_says_how_far_it_can_be_believed_and_shows_it(findings, month, tmp_path):
    found, outcomes = findings
    path = tmp_path / "whatif.html"
    about = About(("a fact & another",), ("1 job left out",), "flexo whatif --sacct dump.txt")
    write_page(found, month.runs, outcomes, about, path)
    text = path.read_text()
    for words in (
        "How far this can be believed",
        "as Slurm does (backfill)",
        "a fact &amp; another",
        "1 job left out",
        "flexo whatif --sacct dump.txt",
        "How long jobs wait under elastic-tiresias",
        "elastic-tiresias: jobs that have had least GPU time so far go first.",
        "the dump has jobs of",
        "How long GPUs were idle between jobs",
        "% of intervals, or of idle GPU time",
    ):
        assert words in text
    assert text.count("<svg") == 4


def test_the_idle_time_of_the_accounting_is_the_rest_of_the_use_that_the_page_tells(findings, month):
    found, _ = findings
    begin, end = min(run.ended_at for run in month.runs), max(run.ready_at for run in month.runs)
    used = sum(run.gpus * max(0.0, min(run.ended_at, end) - max(run.started_at, begin)) for run in month.runs)
    assert found.idle.idle_share == pytest.approx(1 - used / (16 * (end - begin)))
    assert found.calibration.real_utilization == pytest.approx(1 - found.idle.idle_share)
