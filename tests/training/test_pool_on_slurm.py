"""Jobs in Slurm whose gradients a pool's Aggregators sum: flexod assigns them; their death costs nothing."""

from __future__ import annotations

import json
import os
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


@pytest.fixture(scope="module")
def pool_lab() -> Iterator[Lab]:
    """Two nodes and a flexod that accepts pool Aggregators."""
    if reason := why_unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    lab = bring_up(
        LabSpec(name=f"pool-{os.getpid()}", nodes=2, gpus_per_node=1, infer_nodes=0, aggregation=True)
    )
    yield lab
    lab.down()


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
        job.wait_until("its generation", lambda: "generation 2" in job.output())
        before = len(job.events("step"))
        job.wait_until("steps", lambda: len(job.events("step")) > before + 20)
        why = pool_lab.run(["flexo", "why", str(job.job_id)]).stdout
        assert "Aggregator" in why
        one.send_signal(signal.SIGKILL)
        one.wait()
        before = len(job.events("step"))
        job.wait_until("steps", lambda: len(job.events("step")) > before + 20)
        assert "all-reduce" not in job.output()
        taken = [each["taken"] for each in job.events("step") if each["rank"] == 0 and each["world"]]
        assert taken == list(range(1, len(taken) + 1)), "no mini-batch was lost"
        job.cancel()
