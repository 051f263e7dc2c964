"""A DDP script in a real Slurm job: it grows into idle GPUs, and makes room for a rigid job."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from elastic_jobs import SCRIPTS, TRACE, Submit
from thorough import rare

from flexo_lab import Lab
from horovod_elastic.core.choice import SERVICE, TORCH

pytestmark = pytest.mark.slow


def launch(script: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """As a user would start it, in the job's folder."""
    flexo = Path(sys.executable).parent / "flexo"
    command = [str(flexo), "run", *options, sys.executable, str(SCRIPTS / script), *arguments]
    return f"{shlex.join(command)} --log-dir $PWD/logs"


@pytest.mark.parametrize("core", [TORCH, rare(SERVICE)])
def test_it_grows_and_makes_room(submit: Submit, alone: Lab, core: str) -> None:
    options = [f"--core={core}", "--epochs=30"]
    run = launch("plain_ddp.py", "--epochs", "30", "--sleep", "0.1", options=options)
    job = submit("plain_ddp.py", elastic="1-4", launch=run)
    job.wait_until(
        "four workers", lambda: 4 in {each["size"] for each in job.events("step") if each["world"]}
    )
    check_checkpoint(job.folder / "saved.pt", alone, str(job.job_id))
    grown = max(each["time"] for each in job.events("step"))
    needs_some = ["sbatch", "--parsable", "--wait", "-N", "2", "-n", "2", "--gpus-per-node=4"]
    alone.run([*needs_some, "--output=/dev/null", "--wrap", "sleep 1"])
    shrunk = [each for each in job.events("step") if each["time"] > grown and each["world"]]
    assert min(each["size"] for each in shrunk) < 4
    assert "all-reduce" not in job.output(), "Aggregators have made the sums, if they were to"
    why = alone.run(["flexo", "why", str(job.job_id)]).stdout
    assert str(job.job_id) in why
    job.wait_until("an epoch", lambda: max(each["epoch"] for each in job.events("step")) > 0)
    begun = max(each["epoch"] for each in job.events("step"))
    job.wait_until("its progress", lambda: 30 * progress(alone, job.job_id) > begun)
    assert 30 * progress(alone, job.job_id) <= 1 + max(each["epoch"] for each in job.events("step"))
    job.cancel()


def progress(lab: Lab, job_id: int) -> float:
    """The part of its epochs that the job has done, as flexod says."""
    jobs = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    return next(float(job["progress"] or 0) for job in jobs if job["job_id"] == job_id)


def check_checkpoint(path: Path, lab: Lab, job_id: str) -> None:
    """`flexo checkpoint` writes models, optimizers and schedulers, which plain PyTorch reads."""
    for _ in range(2):  # the second one replaces the first
        answer = lab.run(["flexo", "checkpoint", job_id, str(path), "--wait"]).stdout
        assert f"{path} on " in answer
    saved = torch.load(path, weights_only=True)
    assert set(saved["state"]) == {"model", "optimizer", "scheduler"}
    assert set(saved["objects"]) == {"epoch", "batch"}
    assert saved["about"]["workers"] > 1
    commits = saved["about"]["commits"]
    assert {float(each["step"]) for each in saved["state"]["optimizer"]["state"].values()} == {commits}
    assert saved["state"]["scheduler"]["last_epoch"] == commits


@pytest.mark.parametrize(
    ("script", "arguments", "obstacle"),
    [
        ("keeps_its_size.py", [], "new_group"),
        rare("spawns.py", ["--by", "spawn", "--steps", "9999"], "starts its own workers"),
    ],
)
def test_what_keeps_it_at_its_size_is_named(
    submit: Submit, alone: Lab, script: str, arguments: list[str], obstacle: str
) -> None:
    task = ("-n", "2", "-N", "1", "--gpus-per-task=1")
    job = submit(script, elastic="2-4", options=task, launch=launch(script, *arguments))
    job.wait_until("the line", lambda: "keeps its size" in job.output())

    def why() -> str:
        return str(alone.run(["flexo", "why", str(job.job_id)]).stdout)

    job.wait_until("flexo why", lambda: obstacle in why())
    assert f"{script}:" in why()
    job.cancel()


@pytest.mark.thorough
def test_a_sharded_model_grows_by_whole_units(submit: Submit, alone: Lab) -> None:
    """flexod grants units of two workers, although an odd number of GPUs is idle on each other node."""
    for node in alone.run(["sinfo", "--noheader", "-N", "--format=%N", "--partition=train"]).stdout.split():
        take = ["sbatch", "--parsable", f"--nodelist={node}", "-n", "1", "--gpus-per-task=1"]
        alone.run([*take, "--output=/dev/null", "--wrap", "sleep 600"])
    run = launch("in_units.py", "--way", "hsdp", "--sleep", "0.1", options=["--elastic-unit=2"])
    task = ("-n", "2", "-N", "1", "--gpus-per-task=1")
    job = submit("in_units.py", elastic="2-9", options=task, launch=run, environment=[TRACE])
    job.wait_until("a usage error", lambda: "multiple of 2" in job.output())
    job = submit("in_units.py", elastic="2-8", options=task, launch=run, environment=[TRACE])

    def sizes() -> set[int]:
        return {each["size"] for each in job.events("step") if each["world"]}

    job.wait_until("three units", lambda: 6 in sizes())
    assert sizes() <= {2, 4, 6}
    lines = (job.folder / "trace").read_text().splitlines()
    granted = [each["workers"] for each in map(json.loads, lines) if each["event"] == "grant"]
    assert granted == [2, 2]
    job.cancel()
