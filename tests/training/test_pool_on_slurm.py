"""Jobs in Slurm whose gradients a pool's Aggregators sum: flexod assigns them; their death costs nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import elastic_jobs
import pytest
from elastic_jobs import Job
from test_ddp_on_slurm import launch

from flexo_lab import Lab, LabSpec, bring_up, why_unavailable

pytestmark = pytest.mark.slow


@contextmanager
def lab_with_a_pool(name: str, nodes: int, gpus_per_node: int) -> Iterator[Lab]:
    """Its flexod accepts pool Aggregators, and lets all users share them."""
    if reason := why_unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    lab = bring_up(
        LabSpec(
            name=f"{name}-{os.getpid()}",
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            infer_nodes=0,
            aggregation=True,
        )
    )
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def pool_lab() -> Iterator[Lab]:
    """Two nodes."""
    with lab_with_a_pool("pool", 2, 1) as lab:
        yield lab


@pytest.fixture
def users_lab() -> Iterator[Lab]:
    """One node, which three jobs fill, so that none grows."""
    with lab_with_a_pool("users", 1, 6) as lab:
        yield lab


@contextmanager
def aggregator(lab: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """A pool's Aggregator, as a site's service starts it."""
    command = [sys.executable, "-m", "horovod_elastic", "aggregator", "--memory-mib", "512"]
    environment = lab.environment("root")
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def submit(pool_lab: Lab, tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    """submit(name) -> Job: a DDP script on two nodes that asks for the pool."""

    def submit_one(name: str) -> Job:
        folder = pool_lab.scratch / f"{tmp_path.name}-{name}"
        folder.mkdir()
        run = launch("plain_ddp.py", "--sleep", "0.05", options=["--core=service", "--aggregators=pool"])
        options = ("-N", "2", "-n", "2", "--gpus-per-task=1")
        return elastic_jobs.submit(
            pool_lab, folder, "plain_ddp.py", options=options, elastic="2-4", launch=run
        )

    yield submit_one
    for job in pool_lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split():
        pool_lab.run(["scancel", "--quiet", job], check=False)


def events(lab: Lab, kind: str) -> list[dict[str, Any]]:
    """What flexod tells of that kind."""
    told = lab.run(["flexo", "events", "--kind", kind, "--json"], check=False).stdout
    found: list[dict[str, Any]] = json.loads(told)["events"] if told else []
    return found


def test_flexod_assigns_a_pools_aggregator_and_its_death_costs_nothing(
    pool_lab: Lab, submit: Callable[[str], Job]
) -> None:
    with aggregator(pool_lab) as one:
        job = submit("first")
        job.wait_until("an assignment", lambda: events(pool_lab, "assign"))
        job.wait_until("the sums' migration", lambda: "sums are made at" in job.output())
        before = len(job.events("step"))
        job.wait_until("steps", lambda: len(job.events("step")) > before + 20)
        why = pool_lab.run(["flexo", "why", str(job.job_id)]).stdout
        assert "Aggregator" in why
        one.send_signal(signal.SIGKILL)
        one.wait()
        before = len(job.events("step"))
        job.wait_until("steps", lambda: len(job.events("step")) > before + 20)
        assert "all-reduce" not in job.output()
        assert "generation 2" not in job.output()
        check_steps(job)
        job.cancel()


def check_steps(job: Job) -> None:
    """No mini-batch was lost, and none was repeated."""
    taken = [each["taken"] for each in job.events("step") if each["rank"] == 0 and each["world"]]
    assert taken == list(range(1, len(taken) + 1))


@pytest.mark.thorough
def test_jobs_of_three_users_share_an_aggregator(users_lab: Lab) -> None:
    """Each has a token of its own; none loses a mini-batch when it comes, or another one leaves."""
    with aggregator(users_lab):
        jobs = [submit_alone(users_lab, user) for user in USERS]
        for job in jobs:
            job.wait_until("a pool Aggregator", lambda job=job: shares_with(users_lab, job, jobs))
        jobs[0].cancel()
        for job in jobs[1:]:
            before = len(job.events("step"))
            job.wait_until("steps", lambda job=job, before=before: len(job.events("step")) > before + 20)
            check_steps(job)
            assert "all-reduce" not in job.output()


USERS = (None, "games", "news")


def submit_alone(lab: Lab, user: str | None) -> Job:
    """A DDP script with two workers that asks for the pool."""
    folder = lab.scratch / f"of-{user}"
    folder.mkdir()
    if user:
        shutil.chown(folder, user)
    run = launch("plain_ddp.py", "--sleep", "0.3", options=["--core=service", "--aggregators=pool"])
    options = ("-n", "2", "-c", "1", "--gpus-per-task=1")
    return elastic_jobs.submit(
        lab, folder, "plain_ddp.py", options=options, elastic="2-3", launch=run, user=user
    )


def shares_with(lab: Lab, job: Job, jobs: list[Job]) -> bool:
    """Whether flexod says that the Aggregators of this job sum all these jobs."""
    told = lab.run(["flexo", "why", str(job.job_id)], check=False).stdout
    return all(f"{each.job_id}" in told for each in jobs if each is not job) and "shares" in told
