"""A guarantee job and an opportunistic job in Slurm on one pretended GPU: granted, trained on, taken back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import elastic_jobs
import pytest
from elastic_jobs import Job
from test_ddp_on_slurm import launch

from flexo_lab import Lab, LabSpec, bring_up, why_unavailable
from flexo_lab.spec import Profile

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def sharing_lab() -> Iterator[Lab]:
    """Two nodes with one GPU each that can be shared, a coordinator on each, and flexod."""
    if reason := why_unavailable(Profile.ACCOUNTING):
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    spec = LabSpec(
        name=f"share-{os.getpid()}", nodes=2, gpus_per_node=1, infer_nodes=0, sharing=True,
        profile=Profile.ACCOUNTING,
    )  # fmt: skip
    lab = bring_up(spec)
    coordinators = [coordinator(lab, node) for node in lab.spec.train_names]
    yield lab
    for process in coordinators:
        process.send_signal(signal.SIGTERM)
        process.wait()
    lab.down()


def folder_of(lab: Lab, node: str) -> Path:
    """The folder of the node's coordinator."""
    return lab.layout.sharing / node


def coordinator(lab: Lab, node: str) -> subprocess.Popen[bytes]:
    """A coordinator with one pretended GPU, as a site's service starts it."""
    command = [sys.executable, "-m", "horovod_elastic", "share", "coordinator"]
    options = ["--folder", str(folder_of(lab, node)), "--pretend", "gpu0:16"]
    return subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL)


@pytest.fixture
def submit(sharing_lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """submit(*options) -> Job: a DDP script, submitted with these options."""
    count = 0
    where = f"FLEXO_SHARING_FOLDER={sharing_lab.layout.sharing}/%N"

    def submit_one(*options: str, epochs: int = 1000) -> Job:
        nonlocal count
        count += 1
        folder = sharing_lab.scratch / f"{tmp_path.name}-{count}"
        folder.mkdir()
        run = launch("plain_ddp.py", "--epochs", str(epochs), "--sleep", "0.02")
        return elastic_jobs.submit(
            sharing_lab, folder, "plain_ddp.py", options=options, environment=(where,), launch=run
        )

    yield submit_one
    deadline = time.monotonic() + 150
    while jobs := sharing_lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split():
        assert time.monotonic() < deadline, f"jobs do not end: {jobs}"
        sharing_lab.run(["scancel", "--quiet", *jobs], check=False)
        time.sleep(0.3)


def guest_on(lab: Lab, node: str) -> tuple[str, int]:
    """The opportunistic job that the coordinator has on the node's GPU, and its process; "", 0 for none."""
    told = json.loads((folder_of(lab, node) / "status.json").read_text())
    guest = told["gpus"][0]["opportunistic"]
    return (guest["job"], guest["pid"]) if guest else ("", 0)


def why(lab: Lab, job: Job) -> str:
    """What `flexo why` says of a job."""
    return str(lab.run(["flexo", "why", str(job.job_id)]).stdout)


def test_it_trains_beside_another_job_moves_to_a_gpu_of_its_own_and_pauses(sharing_lab, submit):
    hosts = [submit("-n", "1", "--gpus-per-task=1", "-c", "1", "--elastic-cohost") for _ in range(2)]
    for host in hosts:
        host.wait_until("training", lambda host=host: len(host.events("step")) > 5)
    guest = submit("-n", "1", "-c", "1", "--elastic-opportunistic=1-1")
    nodes = sharing_lab.spec.train_names
    guest.wait_until(
        "a guest", lambda: str(guest.job_id) in {guest_on(sharing_lab, node)[0] for node in nodes}
    )
    guest.wait_until("steps", lambda: trained_since(guest, 0.0))
    told = why(sharing_lab, guest)
    (host,) = [each for each in hosts if f"job {each.job_id} " in told]
    assert "of the time" in told
    host.cancel()
    guest.wait_until("a GPU of its own", lambda: "of its own" in why(sharing_lab, guest))
    moved = time.time()
    guest.wait_until("steps there", lambda: trained_since(guest, moved))
    ordinary = elastic_jobs.take_nodes(sharing_lab, 1, 1, 600, "-c", "1")
    elastic_jobs.wait_for_start(guest, ordinary)
    guest.wait_until("a pause", lambda: "pauses" in why(sharing_lab, guest))
    sharing_lab.run(["scancel", str(ordinary)])
    paused = time.time()
    guest.wait_until("steps after the pause", lambda: trained_since(guest, paused))


ORDINARY = """#!/bin/sh
grep -s '^State:' /proc/{process}/status >{out}.new
mv {out}.new {out}
exec sleep 600
"""
"""A job whose first process notes the state of another process, if that is there."""


def test_its_process_is_gone_when_a_job_without_consent_starts_on_its_gpu(sharing_lab, submit):
    hosts = [submit("-n", "1", "--gpus-per-task=1", "-c", "1", "--elastic-cohost") for _ in range(2)]
    for host in hosts:
        host.wait_until("training", lambda host=host: len(host.events("step")) > 5)
    guest = submit("-n", "1", "-c", "1", "--elastic-opportunistic=1-1")
    guest.wait_until("steps", lambda: trained_since(guest, 0.0))
    found = {node: guest_on(sharing_lab, node) for node in sharing_lab.spec.train_names}
    (node,) = [node for node, (job, _) in found.items() if job == str(guest.job_id)]
    out = sharing_lab.scratch / "ordinary"
    script = ORDINARY.format(process=found[node][1], out=out)
    command = ["sbatch", "--parsable", "-o/dev/null", "-n1", "-c1", "--gres=gpu:1", f"--nodelist={node}"]
    ordinary = int(sharing_lab.run(command, user="news", stdin=script).stdout)
    (host,) = [each for each in hosts if elastic_jobs.base_node(each) == node]
    host.cancel()
    elastic_jobs.wait_for_start(guest, ordinary)
    guest.wait_until("the ordinary job's first process", out.exists)
    assert out.read_text() in ("", "State:\tZ (zombie)\n")
    started = time.time()
    guest.wait_until("steps beside the other job", lambda: trained_since(guest, started))
    assert "R" in sharing_lab.run(["squeue", "--noheader", "--format=%t", f"--jobs={ordinary}"]).stdout


def trained_since(job: Job, at: float) -> bool:
    """Whether the job has taken a step since then, as a member of a generation."""
    return any(each["time"] > at and each["world"] for each in job.events("step"))
