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

pytestmark = pytest.mark.slow


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
    return lab.scratch / "sharing" / node


def coordinator(lab: Lab, node: str) -> subprocess.Popen[bytes]:
    """A coordinator with one pretended GPU, as a site's service starts it."""
    command = [sys.executable, "-m", "horovod_elastic", "share", "coordinator"]
    options = ["--folder", str(folder_of(lab, node)), "--pretend", "gpu0:16"]
    return subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL)


@pytest.fixture
def submit(sharing_lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """submit(*options) -> Job: a DDP script, submitted with these options."""
    count = 0
    where = f"FLEXO_SHARING_FOLDER={sharing_lab.scratch}/sharing/%N"

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


def guest_on(lab: Lab, node: str) -> str:
    """The opportunistic job that the coordinator has on the node's GPU; "" for none."""
    told = json.loads((folder_of(lab, node) / "status.json").read_text())
    guest = told["gpus"][0]["opportunistic"]
    return guest["job"] if guest else ""


def test_it_trains_on_gpus_that_others_hold_and_pauses_when_they_end(sharing_lab, submit):
    hosts = [submit("-n", "1", "--gpus-per-task=1", "-c", "1", "--elastic-cohost") for _ in range(2)]
    for host in hosts:
        host.wait_until("training", lambda host=host: len(host.events("step")) > 5)
    guest = submit("-n", "1", "-c", "1", "--elastic-opportunistic=1-2")
    guest.wait_until("two workers", lambda: 2 in {each["size"] for each in guest.events("step") if each["world"]})
    assert {guest_on(sharing_lab, node) for node in sharing_lab.spec.train_names} == {str(guest.job_id)}
    why = sharing_lab.run(["flexo", "why", str(guest.job_id)]).stdout
    assert f"job {hosts[0].job_id} " in why
    assert "of the time" in why
    before = len(hosts[0].events("step"))
    for host in hosts:
        host.cancel()
    guest.wait_until("workers on GPUs of its own", lambda: "of its own" in sharing_lab.run(["flexo", "why", str(guest.job_id)]).stdout)
    since = time.time()
    guest.wait_until("training again", lambda: any(each["time"] > since for each in guest.events("step")))
    assert before
