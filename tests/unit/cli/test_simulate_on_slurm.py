"""`flexo simulate --on-slurm`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from flexo_cli.app import application

JOBS = "job_id,submit_time_s,gpus,duration_s,min_gpus,max_gpus\ngrows,0,1,400,1,4\nrigid,100,2,50,2,2\n"


def simulate(tmp_path, *more: str):
    trace = tmp_path / "jobs.csv"
    trace.write_text(JOBS)
    cluster = ["--trace", str(trace), "--format", "own", "--nodes", "1", "--gpus-per-node", "4"]
    return CliRunner().invoke(application(), ["simulate", *cluster, *more], obj="flexo simulate")


def test_jobs_grow_by_satellites_and_give_way(tmp_path) -> None:
    done = simulate(tmp_path, "--on-slurm", "--policy", "greedy", "--policy", "backfill", "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["greedy"]["resizes"] >= 2
    assert found["backfill"]["resizes"] == 0
    assert found["greedy"]["avg_jct_s"] < found["backfill"]["avg_jct_s"]


def test_what_things_take_can_be_said_and_is_told(tmp_path) -> None:
    costs = ["--start-cost", "7", "--resize-cost", "0.5", "--warm-up", "33", "--interval", "4"]
    done = simulate(tmp_path, "--on-slurm", "--policy", "greedy", *costs)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    for words in ("every 4 s", "boots for 7 s", "warms up for 33 s", "still for 0.5 s"):
        assert words in told


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--warm-up", "3"], "--warm-up"),
        (["--on-slurm", "--estimates", "oracle"], "--estimates"),
        (["--on-slurm", "--quota", "ada=3"], "--quota"),
        (["--on-slurm", "--no-checkpoints"], "--no-checkpoints"),
        (["--on-slurm", "--policy", "antman", "--set", "antman.share_gpus=true"], "--set"),
        (["--on-slurm", "--inference-nodes", "2", "--no-loaning"], "--no-loaning"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, options: list[str], named: str) -> None:
    done = simulate(tmp_path, *options)
    assert done.exit_code == 2
    assert named in done.output
