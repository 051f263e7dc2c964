"""`flexo simulate` and `flexo whatif`: output, JSON, files, exit codes, and what is said to whom."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from says import says
from traces import needs_traces

from flexo_cli.site.simulation import setup, whatif_run
from flexo_cli.site.simulation.asked import AskedCluster, AskedElasticity, AskedJobs, AskedRules
from flexo_simulation.comparison import run_in_time
from flexo_simulation.engine import SimulationStuck

OWN = """job_id,submit_time_s,gpus,duration_s
a,0,4,1000
b,10,8,500
c,20,2,100
"""
KEYS = {
    "jobs",
    "avg_jct_s",
    "median_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "max_jct_s",
    "avg_queue_s",
    "median_queue_s",
    "p95_queue_s",
    "makespan_s",
    "gpu_utilization",
    "resizes",
    "preemptions",
    "sjs_efficiency",
    "worst_fairness",
    "unfair_share",
    "drop_ratio",
    "wall_s",
    "events",
    "oracle",
}
SMALL = ("--nodes", "2", "--gpus-per-node", "4", "--start-cost", "0")
CAPTURED = Path(__file__).parents[1] / "simulation" / "captured"
DUMP = CAPTURED / "sacct-22.05-parsable2.txt"
SAMPLE = Path(__file__).parents[3] / "examples" / "site" / "sacct.txt"
YARN_DUMP = CAPTURED / "yarn-3.5.0-history.json"

SHARING = ("--policy", "antman", "--set", "antman.share_gpus=true")


@pytest.fixture
def flexo(flexo_run, tmp_path, monkeypatch):
    """Runs a command line in an empty folder; exit code, output, error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return flexo_run


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(OWN)
    return str(path)


def test_one_policy_gives_one_object_with_all_keys(flexo, own):
    code, out, err = flexo(
        "simulate", "--trace", own, "--format", "own", "--policy", "fifo", *SMALL, "--json", "F"
    )
    assert (code, err) == (0, "")
    found = json.loads(Path("F").read_text())
    assert set(found) >= KEYS
    assert found["jobs"] == 3
    assert found["avg_jct_s"] == pytest.approx((1000 + 1490 + 1580) / 3)
    assert "completion time, mean" in out


def test_several_policies_give_an_object_by_name_and_a_column_each(flexo, own):
    policies = ("--policy", "fifo", "--policy", "srtf")
    code, out, _ = flexo("simulate", "--trace", own, "--format", "own", *policies, *SMALL, "--json", "F")
    assert code == 0
    found = json.loads(Path("F").read_text())
    assert list(found) == ["fifo", "srtf"]
    assert [found[name]["oracle"] for name in found] == [False, True]
    assert "srtf (oracle)" in out
    assert says(out, "true running times")


def test_json_on_the_output_leaves_nothing_else_there(flexo, own):
    for arguments in (("--json",), ("--json", "-"), ("--json", "--quiet")):
        code, out, _ = flexo("simulate", "--trace", own, "--format", "own", *SMALL, *arguments)
        assert code == 0
        assert json.loads(out)["finished"] == 3


@pytest.mark.processes
def test_policies_in_processes_of_their_own_come_to_the_same(flexo, own):
    policies = ("--policy", "fifo", "--policy", "srtf", "--policy", "backfill")
    arguments = ("simulate", "--trace", own, "--format", "own", *policies, *SMALL, "--json")
    alone, together = (json.loads(flexo(*arguments, "-", "--jobs", n)[1]) for n in ("1", "3"))
    for found in (*alone.values(), *together.values()):
        del found["wall_s"]
    assert alone == together


def test_told_true_running_times_every_policy_that_looks_at_them_is_an_oracle(flexo, own):
    policies = ("--policy", "backfill", "--policy", "tiresias")
    arguments = ("simulate", "--trace", own, "--format", "own", *policies, *SMALL, "--json")
    for told, oracle in (("history", False), ("oracle", True)):
        found = json.loads(flexo(*arguments, "-", "--estimates", told)[1])
        assert [found[name]["oracle"] for name in ("backfill", "tiresias")] == [oracle, False]


def test_slower_gpus_take_longer_and_both_the_speed_and_the_loss_of_mixing_can_be_said(flexo, own):
    cluster = ("--gpu-types", "v100:1x1,t4:1x8", "--policy", "fifo", "--fungible-share", "1")
    arguments = ("simulate", "--trace", own, "--format", "own", *cluster, "--start-cost", "0")
    code, out, _ = flexo(*arguments, "--json", "usual")
    assert code == 0
    assert says(out, "v100 1", "t4 0.333", "0.9 of")
    faster = ("--gpu-speed", "t4=0.5", "--mixed-efficiency", "1")
    assert says(flexo(*arguments, *faster)[1], "v100 1", "t4 0.5", "1 of")
    assert flexo(*arguments, *faster, "--json", "faster")[0] == 0
    usual, fast = (json.loads(Path(name).read_text())["makespan_s"] for name in ("usual", "faster"))
    assert fast < usual


def test_lyra_is_told_the_speeds_unless_it_is_told_others():
    jobs, rules = AskedJobs(generate=3), AskedRules(policies=("lyra", "fifo"))
    cluster = AskedCluster(gpu_types="v100:1x8,t4:1x8", gpu_speeds=("T4=0.5",), mixed_efficiency=0.8)
    nodes, speeds = setup.node_groups(cluster), setup.gpu_speeds(cluster)
    workload = setup.workload(jobs, AskedElasticity(), nodes)
    (told, _), (other, _) = (
        setup.trials(jobs, replace(rules, settings=settings), nodes, speeds, workload)
        for settings in ((), ("lyra.gpu_speeds={T4=0.25}",))
    )
    assert (told.policy.gpu_speeds, told.policy.mixed_efficiency) == ({"t4": 0.5}, 0.8)
    assert (other.policy.gpu_speeds, other.policy.mixed_efficiency) == ({"T4": 0.25}, 0.8)
    assert other.scenario.gpu_speeds == speeds


def test_quiet_says_nothing(flexo, own):
    assert flexo("simulate", "--trace", own, "--format", "own", *SMALL, "--quiet") == (0, "", "")


def test_a_bad_line_ends_with_1_and_is_named_and_can_be_skipped(flexo):
    Path("bad.csv").write_text(OWN + "d,30,x,5\n")
    arguments = ("simulate", "--trace", "bad.csv", "--format", "own", *SMALL)
    code, out, err = flexo(*arguments)
    assert (code, out) == (1, "")
    assert says(err, "flexo", "bad.csv:5", "gpus", "'x'", "from 0")
    assert err.count("\n") == 1
    code, out, err = flexo(*arguments, "--bad-lines", "skip")
    assert code == 0
    assert says(err, "skipped 1 line", "bad.csv:5", "gpus", "'x'")


def test_jobs_that_can_never_fit_are_named(flexo):
    Path("large.csv").write_text(OWN + "large,30,64,5\ncpu,40,0,5\n")
    code, out, err = flexo(
        "simulate", "--trace", "large.csv", "--format", "own", *SMALL, "--policy", "fifo", "--json"
    )
    assert code == 0
    assert says(err, "never fit", "job 4 (large)")
    assert says(err, "no GPU", "1 job")
    assert json.loads(out)["finished"] == 3


def test_generated_jobs_can_be_written_and_simulated_again_the_same(flexo):
    made = ("--generate", "40", "--seed", "3", "--elastic-share", "50%", "--longest", "9000")
    rest = ("--policy", "lyra", *SMALL, "--json", "-", "-q")
    code, first, _ = flexo("simulate", *made, "--write", "made.csv", *rest)
    assert code == 0
    assert Path("made.csv").read_text().startswith("# 40 generated jobs (seed 3)\n# arrivals: Poisson")
    code, again, _ = flexo("simulate", "--trace", "made.csv", "--format", "own", *rest)
    assert code == 0
    assert json.loads(again)["avg_jct_s"] == pytest.approx(json.loads(first)["avg_jct_s"], abs=0.01)


def test_a_report_is_written(flexo, own):
    code, _, _ = flexo(
        "simulate", "--trace", own, "--format", "own", *SMALL, "--policy", "fifo", "--report", "r.html"
    )
    assert code == 0
    text = Path("r.html").read_text()
    assert f"flexo simulate --trace {own} --format own" in text
    assert "<svg" in text


def test_types_of_gpus_and_servers_on_loan_are_understood(flexo, own):
    types = (
        "--gpu-types",
        "v100:2x4,t4:1x8",
        "--on-loan",
        "t4",
        "--fungible-share",
        "1",
        "--start-cost",
        "0",
    )
    code, out, _ = flexo("simulate", "--trace", own, "--format", "own", *types)
    assert code == 0
    assert says(out, "2 nodes of 4 v100", "1 node of 8 t4 on loan")


def test_settings_of_policies_reach_them(flexo, own):
    arguments = ("simulate", "--trace", own, "--format", "own", *SMALL, "--policy", "backfill", "--json")
    assert flexo(*arguments, "--set", "backfill.depth=1")[0] == 0
    code, _, err = flexo(*arguments, "--set", "backfill.width=1")
    assert code == 2
    assert "no setting 'width'" in " ".join(err.split())


def test_a_value_that_has_another_name_now_is_taken_and_the_new_name_said(flexo, own):
    options = ("--format", "own", *SMALL, "--policy", "lyra", "--json", "-")
    arguments = ("simulate", "--trace", own, *options, "--set")
    code, out, err = flexo(*arguments, "lyra.order=slurm")
    assert code == 0
    assert "lyra.order=cluster" in err
    _, now, _ = flexo(*arguments, "lyra.order=cluster")
    assert json.loads(out)["avg_jct_s"] == json.loads(now)["avg_jct_s"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say --trace FILE, or --generate N"),
        (("--trace", "x"), "say which: own, sacct, yarn"),
        (("--trace", "x", "--format", "y"), "'y' is none of own"),
        (("--trace", "x", "--format", "own", "--generate", "4"), "one of --trace and --generate"),
        (("--generate", "4", "--policy", "lyrra"), "did you mean lyra?"),
        (("--generate", "4", "--policy", "fifo", "--policy", "fifo"), "named twice"),
        (("--generate", "4", "--set", "fifo.x=1"), "not among the policies that run"),
        (("--generate", "4", "--set", "x"), "POLICY.SETTING=VALUE"),
        (("--generate", "4", "--elastic-share", "3"), "is no share"),
        (("--generate", "4", "--elastic-share", "1", "--elastic-of", "some"), "none of multi, all"),
        (("--generate", "4", "--arrivals", "late"), "none of poisson, bursty"),
        (("--generate", "4", "--estimates", "mine"), "none of oracle, history"),
        (("--generate", "4", "--gpu-types", "v100"), "TYPE:NODESxGPUS"),
        (("--generate", "4", "--gpu-types", "a:1x1,a:1x2"), "twice"),
        (("--generate", "4", "--gpu-types", "a:1x1", "--nodes", "3"), "says nodes and GPUs already"),
        (("--generate", "4", "--gpu-types", "a:1x1", "--on-loan", "b"), "not among"),
        (("--generate", "4", "--gpu-types", "t4:1x1", "--gpu-speed", "t4=0"), "TYPE=SPEED, above 0"),
        (("--generate", "4", "--gpu-types", "t4:1x1", "--mixed-efficiency", "1.5"), "at most 1"),
        (("--generate", "4", "--policy", "antman", "--quota", "x"), "TENANT=GPUS"),
        (("--generate", "4", *SHARING, "--utilization", "2"), "is no share"),
        (("--generate", "4", "--elastic-share", "1", "--min-factor", "2"), "at most 1"),
        (("--generate", "4", "--elastic-share", "1", "--min", "8", "--max", "2"), "--min 8 is above --max 2"),
        (("--generate", "4", "--bad-lines", "hide"), "neither refuse nor skip"),
        (("--generate", "0",), "--generate"),
        (("--generate", "4", "--policy", "greedy"), "greedy deals out satellites of jobs that Slurm starts"),
        (("--generate", "4", "--set", "lyra.stay_s=soon"), "stay_s is 'soon'"),
        (("--generate", "4", "--interval", "inf"), "--interval"),
        (("--generate", "4", "--start-cost", "inf"), "--start-cost"),
        (("--generate", "4", "--elastic-share", "1", "--max-factor", "inf"), "--max-factor"),
        (("--generate", "4", "--nodes", "0"), "--nodes"),
    ],
)  # fmt: skip
def test_a_command_line_that_cannot_be_ends_with_2_and_says_why(flexo, arguments, says):
    code, out, err = flexo("simulate", *arguments)
    assert (code, out) == (2, "")
    assert says in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--format", "own"), "--format: it does nothing without --trace"),
        (("--partition", "gpu"), "--partition: it does nothing without --format sacct or yarn"),
        (("--cluster", "a"), "--cluster: it does nothing without --format sacct"),
        (("--undeclared",), "--undeclared: it does nothing without --format pollux"),
        (("--caution", "1"), "--caution: it does nothing without --format pollux"),
        (("--model", "bert"), "--model: it does nothing without --profiles"),
        (("--min", "4"), "--min: it does nothing without --elastic-share"),
        (("--on-loan", "b"), "--on-loan: it does nothing without --gpu-types"),
        (("--gpu-speed", "t4=1"), "--gpu-speed: it does nothing without --gpu-types"),
        (("--quota", "a=4"), "--quota: it does nothing without --policy antman"),
        (("--utilization", "40%"), "--utilization: it does nothing without --set antman.share_gpus=true"),
        (
            ("--policy", "antman", "--utilization", "40%"),
            "--utilization: it does nothing without --set antman.share_gpus=true",
        ),
        (("--load", "1", "--rate", "4"), "--load: say one of --load and --rate"),
        (
            ("--elastic-share", "1", "--max", "4", "--max-factor", "2"),
            "--max-factor: say one of --max-factor and --max",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(flexo, arguments, says):
    code, out, err = flexo("simulate", "--generate", "4", *arguments)
    assert (code, out) == (2, "")
    assert says in " ".join(err.replace("│", " ").split())


def test_options_of_jobs_that_are_made_up_are_refused_beside_a_trace(flexo, own):
    code, _, err = flexo("simulate", "--trace", own, "--format", "own", "--load", "0.5")
    assert code == 2
    assert "--load: it does nothing without --generate" in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize("option", ["--json", "--report", "--write"])
def test_what_cannot_be_written_ends_with_1(flexo, own, option):
    code, _, err = flexo(
        "simulate", "--trace", own, "--format", "own", *SMALL, "-q", option, "no/such/folder"
    )
    assert code == 1
    assert says(err, "no/such/folder", "No such file")


def test_ctrl_c_ends_with_130(flexo, own, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("flexo_cli.site.simulation.run.run_trials", interrupted)
    code, _, err = flexo("simulate", "--trace", own, "--format", "own", *SMALL)
    assert code == 130
    assert "interrupted" in err


def test_a_simulation_that_would_never_end_ends_with_1_and_says_why(flexo, own, monkeypatch):
    def stuck(*_):
        raise SimulationStuck("jobs take turns")

    monkeypatch.setattr("flexo_cli.site.simulation.run.run_trials", stuck)
    code, _, err = flexo("simulate", "--trace", own, "--format", "own", *SMALL)
    assert code == 1
    assert "the simulation would never end: jobs take turns" in err


def test_a_format_brings_its_authors_setting_and_options_go_before_it(flexo):
    trace = needs_traces("pollux/workloads/workload-6.csv")
    arguments = ("simulate", "--trace", str(trace), "--format", "pollux", "--policy", "fifo")
    _, out, _ = flexo(*arguments)
    assert says(out, "every 60 s", "start costs 30 s", "resize 30 s")
    _, out, _ = flexo(*arguments, "--interval", "0", "--start-cost", "1", "--resize-cost", "2")
    assert says(out, "policies decide whenever", "start costs 1 s", "resize 2 s")


def test_whatif_writes_a_page_and_says_how_far_it_can_be_believed(flexo):
    code, out, err = flexo("whatif", "--sacct", str(DUMP), "--elastic-share", "100%", "--json", "w.json")
    assert code == 0
    assert "left out because they never started: 2 jobs" in err
    assert "as Slurm does (backfill)" in out
    assert "Really, " in out
    assert "the page is whatif.html" in out
    assert "What if jobs had been elastic?" in Path("whatif.html").read_text()
    found = json.loads(Path("w.json").read_text())
    assert [(case["policy"], case["elastic_share"]) for case in found["cases"]] == [
        ("lyra", 0.0),
        ("lyra", 1.0),
        ("elastic-tiresias", 0.0),
        ("elastic-tiresias", 1.0),
    ]
    assert found["not_simulated"] == []
    inferred = found["cluster"].pop("inferred")
    assert found["cluster"] == {"nodes": 2, "gpus": 8}
    assert says(inferred, "4 GPUs a node", "2 nodes", "8 GPUs")


@pytest.mark.processes
def test_a_reader_of_whatif_s_words_who_leaves_early_does_not_cost_the_page(tmp_path):
    page = tmp_path / "page.html"
    flexo = (sys.executable, "-u", "-c", "from flexo_cli import main; main()")
    options = ("whatif", "--sacct", str(DUMP), "--elastic-share", "0", "--report", str(page))
    with subprocess.Popen((*flexo, *options), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        running.stdout.close()
    assert "What if jobs had been elastic?" in page.read_text()


def test_whatif_simulates_no_draw_of_jobs_twice(flexo, monkeypatch):
    ran = []

    def counted(trials, *arguments):
        ran.extend(trials)
        return run_in_time(trials, *arguments)

    monkeypatch.setattr(whatif_run, "run_in_time", counted)
    code, _, _ = flexo(
        *("whatif", "--sacct", str(DUMP), "--policy", "lyra", "--json", "w.json"),
        *("--elastic-share", "100%", "--elastic-share", "0", "--elastic-share", "0.1%"),
    )
    assert code == 0
    assert len(ran) == 3
    cases = json.loads(Path("w.json").read_text())["cases"]
    assert [case["elastic_share"] for case in cases] == [0.0, 0.001, 1.0]


def test_whatif_simulates_the_most_important_cases_whatever_the_time_and_names_the_others(flexo):
    code, out, _ = flexo("whatif", "--sacct", str(SAMPLE), "--within", "0.0001", "--json", "w.json")
    assert code == 0
    assert says(out, "Not simulated", "elastic-tiresias with 0%", "--within all", "order alone")
    assert says(Path("whatif.html").read_text(), "Not simulated", "lyra with 5%, 50%, 100%", "--within all")
    found = json.loads(Path("w.json").read_text())
    assert [(case["policy"], case["elastic_share"]) for case in found["cases"]] == [
        ("lyra", 0.0),
        ("lyra", 0.2),
    ]
    assert len(found["not_simulated"]) == 8


@pytest.mark.parametrize("within", ["soon", "-1", "nan"])
def test_whatif_refuses_a_time_limit_that_is_none(flexo, within):
    code, _, err = flexo("whatif", "--sacct", str(SAMPLE), f"--within={within}")
    assert code == 2
    assert says(err, within, "minutes, or all")


def test_whatif_writes_the_page_while_it_simulates(flexo, monkeypatch):
    pages = []

    def stopped(trials, *arguments):
        *others, done = arguments

        def then(number, outcome):
            done(number, outcome)
            pages.append(Path("whatif.html").read_text())

        run_in_time(trials, *others, then)

    monkeypatch.setattr(whatif_run, "_EARLY_S", 0.0)
    monkeypatch.setattr(whatif_run, "_WRITING_PART", 0.0)
    monkeypatch.setattr(whatif_run, "run_in_time", stopped)
    code, _, _ = flexo("whatif", "--sacct", str(DUMP), "--elastic-share", "100%", "--policy", "lyra")
    assert code == 0
    assert says(pages[0], "still simulating", "lyra with 0%, 100%")
    assert says(pages[1], "still simulating", "lyra with 100%")
    assert "still simulating" not in Path("whatif.html").read_text()


def test_whatif_counts_nodes_that_no_job_used_as_idle(flexo):
    sample = ("whatif", "--sacct", str(SAMPLE), "--elastic-share", "0", "--policy", "lyra")
    code, out, _ = flexo(*sample, "--gpus-per-node", "8", "--nodes", "6", "--json", "w.json")
    assert code == 0
    assert says(out, "48 GPUs of 6 nodes", "No job", "2 of these nodes")
    found = json.loads(Path("w.json").read_text())
    assert (found["idle"]["gpus"], found["idle"]["unused_nodes"]) == (48, 2)
    assert found["idle"]["idle_share"] == pytest.approx(1 - found["calibration"]["real_utilization"])


def test_whatif_says_why_idle_gpus_cannot_be_told(flexo):
    code, out, _ = flexo("whatif", "--sacct", str(DUMP), "--elastic-share", "0", "--json", "w.json")
    assert code == 0
    assert says(out, "How long GPUs were idle", "cannot be told", "NodeList")
    assert "NodeList" in json.loads(Path("w.json").read_text())["idle"]["not_told"]
    assert says(Path("whatif.html").read_text(), "How long GPUs were idle", "cannot be told")


def test_whatif_tells_how_long_gpus_were_idle_on_nodes_of_the_size_that_is_said(flexo):
    sample = ("whatif", "--sacct", str(SAMPLE), "--elastic-share", "0", "--policy", "lyra")
    code, out, _ = flexo(*sample, "--gpus-per-node", "8", "--resize-cost", "2", "--json", "w.json")
    assert code == 0
    assert says(out, "32 GPUs of 4 nodes", "malleable", "2 s", "freed last, used first", "> 60 MIN")
    idle = json.loads(Path("w.json").read_text())["idle"]
    assert (idle["nodes"], idle["gpus"], idle["resize_s"]) == (4, 32, 2.0)
    assert [each["minutes"] for each in idle["readings"]["freed last, used first"]["longer"]] == [
        1,
        5,
        15,
        60,
    ]


def test_whatif_says_which_policies_are_oracles(flexo):
    code, out, _ = flexo(
        "whatif", "--sacct", str(DUMP), "--elastic-share", "0", "--policy", "srtf", "--report", "p.html"
    )
    assert code == 0
    assert "srtf (oracle)" in out
    assert "which no scheduler knows" in out
    assert "which no scheduler knows" in Path("p.html").read_text()


def test_whatif_of_a_dump_of_yarn_compares_with_what_yarn_does(flexo):
    code, out, err = flexo("whatif", "--yarn", str(YARN_DUMP), "--elastic-share", "100%", "--json", "w.json")
    assert code == 0
    assert "left out because they held no GPU for a second: 2 jobs" in err
    assert "as YARN does (fifo)" in out
    assert says(out, "GPU-seconds, not its GPUs", "average", "rounded up")
    assert "Slurm" not in out
    page = Path("whatif.html").read_text()
    assert says(page, "GPU-seconds, not its GPUs", "as YARN does (fifo)")
    assert "Slurm" not in page
    found = json.loads(Path("w.json").read_text())
    assert (found["software"], found["baseline"]["policy"]) == ("YARN", "fifo")
    assert found["cluster"] == {"nodes": 2, "gpus": 8, "inferred": "the nodes that the dump has"}


def test_simulate_reads_a_dump_of_yarn(flexo):
    arguments = ("--format", "yarn", "--policy", "lyra", "--nodes", "2", "--partition", "default")
    code, out, _ = flexo("simulate", "--trace", str(YARN_DUMP), *arguments)
    assert code == 0
    assert "8 jobs, none elastic" in out


def test_whatif_without_a_dump_says_what_is_wanted(flexo):
    both = ("--sacct", str(DUMP), "--yarn", str(YARN_DUMP))
    for arguments in ((), both):
        code, _, err = flexo("whatif", *arguments)
        assert code == 2
        assert says(err, "--sacct", "--yarn")
    code, _, err = flexo("whatif", "--yarn", str(YARN_DUMP), "--cluster", "a")
    assert code == 2
    assert says(err, "--cluster", "nothing without --sacct")
    Path("x.txt").write_text("hello\n")
    code, _, err = flexo("whatif", "--sacct", "x.txt")
    assert code == 1
    assert says(err, "sacct --parsable2")


TWO_ON_ONE_GPU = (
    "job_id,submit_time_s,gpus,duration_s,tenant,model\nowner,0,1,1000,a,ESPnet\nguest,0,1,1000,b,ResNet-50\n"
)


def test_antman_shares_gpus_if_it_is_told_so(flexo, tmp_path):
    trace = tmp_path / "jobs.csv"
    trace.write_text(TWO_ON_ONE_GPU)
    options = (
        "--nodes",
        "1",
        "--gpus-per-node",
        "1",
        "--start-cost",
        "0",
        "--policy",
        "antman",
        "--quota",
        "a=1",
    )
    arguments = ("simulate", "--trace", str(trace), "--format", "own", *options, "--json", "-")
    alone, shared = (json.loads(flexo(*arguments, *more)[1]) for more in ((), SHARING[2:]))
    assert alone["makespan_s"] == 2000.0
    assert 1400.0 < shared["makespan_s"] < 1500.0
    assert shared["max_jct_s"] == shared["makespan_s"]


def test_a_job_of_an_unknown_model_uses_its_gpus_as_the_command_says(flexo, tmp_path):
    trace = tmp_path / "jobs.csv"
    trace.write_text(TWO_ON_ONE_GPU.replace("ESPnet", "").replace("ResNet-50", "mine"))
    options = ("--nodes", "1", "--gpus-per-node", "1", "--policy", "antman", "--quota", "a=1")
    arguments = ("simulate", "--trace", str(trace), "--format", "own", *options, "--json", "-")
    found = []
    for utilization in ("10%", "70%", "90%"):
        sharing = (*SHARING[2:], "--utilization", utilization)
        found.append(json.loads(flexo(*arguments, *sharing)[1])["makespan_s"])
    assert found == sorted(found)
    assert found[0] < 1050.0
    assert found[2] >= 2000.0  # busy for more than M of the time: nobody sits beside it
