"""`flexo simulate` with an inference cluster that lends: options, figures, the page, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from says import says

JOBS = "job_id,submit_time_s,gpus,duration_s\n" + "".join(f"{name},0,4,1000\n" for name in "abcd")
CLUSTER = ("--nodes", "1", "--gpus-per-node", "4", "--start-cost", "0", "--inference-nodes", "8")


@pytest.fixture
def flexo(flexo_run, tmp_path, monkeypatch):
    """Runs `flexo simulate` on four jobs of one node each; exit code, output, error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("jobs.csv").write_text(JOBS)
    Path("demand.csv").write_text("time,servers\n0,1\n400,8\n3000,0\n")

    known = ("simulate", "--trace", "jobs.csv", "--format", "own", "--estimates", "oracle")
    return partial(flexo_run, *known)


def test_idle_servers_are_lent_by_the_demand_of_a_file(flexo):
    options = ("--inference-gpus", "4", "--inference-demand", "demand.csv", "--json", "-")
    code, out, _ = flexo(*CLUSTER, *options)
    assert code == 0
    result = json.loads(out)
    assert result["avg_queue_s"] == 0
    assert result["loans"]["loans"] >= 3
    assert result["loans"]["servers_reclaimed"] >= 3
    assert result["loans"]["bases_preempted"] == 3
    assert result["loans"]["deadlines_missed"] == 0
    assert result["preemptions"] == 3


def test_on_slurm_fungible_jobs_start_on_lent_servers_and_are_preempted_by_reclaims(flexo_run, flexo):
    servers = ("--inference-gpus", "4", "--inference-demand", "demand.csv")
    trace = ("simulate", "--trace", "jobs.csv", "--format", "own", "--on-slurm", "--fungible-share", "1")
    code, out, _ = flexo_run(*trace, *CLUSTER, *servers, "--json", "-")
    assert code == 0
    result = json.loads(out)
    assert result["loans"]["jobs_on_loan"] == 3
    assert result["loans"]["bases_preempted"] == 3
    assert result["loans"]["deadlines_missed"] == 0
    assert result["finished"] == 4


def test_the_table_and_the_page_tell_of_loans_and_say_what_was_assumed(flexo):
    options = ("--inference-gpus", "4", "--inference-demand", "demand.csv", "--report", "page.html")
    code, out, err = flexo(*CLUSTER, *options)
    assert (code, err) == (0, "")
    assert says(out, "8 inference servers of 4 GPUs", "demand.csv")
    assert "servers lent, each time" in out
    assert "deadlines missed" in out
    page = Path("page.html").read_text()
    assert says(page, "8 inference servers", "in use by jobs")


def test_without_an_inference_cluster_nothing_is_said_of_loans(flexo):
    code, out, _ = flexo("--nodes", "1", "--json", "-")
    assert code == 0
    assert "loans" not in json.loads(out)


def test_with_no_loaning_jobs_wait_and_the_use_of_both_clusters_is_told(flexo):
    code, out, _ = flexo(*CLUSTER, "--no-loaning", "--inference-demand", "demand.csv", "--json", "-")
    assert code == 0
    result = json.loads(out)
    assert result["avg_queue_s"] == 1500
    assert result["loans"]["loans"] == 0
    assert 0 < result["loans"]["overall_use"] < 1


def test_made_up_demand_is_that_of_the_seed(flexo):
    def once(seed: str) -> dict[str, object]:
        code, out, _ = flexo(*CLUSTER, "--seed", seed, "--json", "-")
        assert code == 0
        return json.loads(out)["loans"]

    assert once("1") == once("1")
    assert once("1")["inference_use"] != once("2")["inference_use"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--reclaim", "any"), "Invalid value for --inference-nodes: say it, too"),
        (("--no-loaning",), "Invalid value for --inference-nodes: say it, too"),
        ((*CLUSTER, "--reclaim", "any"), "'any' is none of heuristic, exact, random, smallest"),
        ((*CLUSTER, "--headroom", "much"), "'much' is no share"),
    ],
)
def test_options_that_cannot_be_are_refused(flexo, options: tuple[str, ...], problem: str):
    code, _, err = flexo(*options)
    assert code == 2
    assert problem in " ".join(err.replace("│", " ").split())


def test_a_demand_that_makes_no_sense_is_refused_by_its_line(flexo):
    Path("bad.csv").write_text("time,servers\n0,-1\n")
    code, _, err = flexo(*CLUSTER, "--inference-demand", "bad.csv")
    assert code == 1
    assert says(err, "bad.csv:2", "servers", "'-1'", "from 0")
