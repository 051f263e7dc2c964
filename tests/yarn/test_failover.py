"""Two ResourceManagers and ZooKeeper: when the active one is killed, jobs and flexod use the other one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from applications import SMALL_MIB, Application, wait_for
from yarn_jobs import FLEXO, YarnJob, submit

from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn, wait_for_nodes
from flexo_yarn import records, rest
from flexo_yarn.application_master import Ask
from flexo_yarn.configuration import read_client
from flexo_yarn.ipc.errors import Unreachable

pytestmark = pytest.mark.thorough


@pytest.fixture
def two() -> Iterator[YarnLab]:
    """A lab with two ResourceManagers."""
    lab = bring_up_yarn(YarnLabSpec(name=f"two-{os.getpid()}", nodes=2, resource_managers=2))
    yield lab
    lab.down()


def active(lab: YarnLab) -> str | None:
    """The name of the active ResourceManager; None while there is none."""
    web = read_client(lab.yarn_layout.client_conf).web
    for name, server in zip(lab.spec.rm_names, web, strict=True):
        with suppress(Unreachable):
            if rest.get(server, "info", {}, 5)["clusterInfo"]["haState"] == "ACTIVE":
                return name
    return None


def fail_over(lab: YarnLab, job: YarnJob) -> None:
    """Kill the active ResourceManager; wait until the other one has the nodes and the job has gone on."""
    killed = wait_for("an active ResourceManager", lambda: active(lab))
    wait_for("the other one", lambda: all(lab.processes_of(name) for name in lab.spec.rm_names))
    lab.kill(killed)
    wait_for("a takeover", lambda: active(lab) not in (None, killed))
    wait_for_nodes(lab)
    went = time.time()
    job.wait_until("batches", lambda: any(event["time"] > went for event in job.events("commit")))
    name = records.application_text(job.application)
    assert name in lab.run([FLEXO, "yarn", "history"]).stdout
    lab.start(killed)


@pytest.mark.timeout(600)
def test_a_job_loses_no_worker_and_flexod_goes_on_when_the_active_resourcemanager_is_killed(
    two: YarnLab, tmp_path: Path
) -> None:
    job = submit(two, tmp_path, "counting.py", elastic="2-4")
    job.wait_for_size(4)
    fail_over(two, job)
    fail_over(two, job)
    assert job.sizes() == [2, 4]

    ordinary = Application.submit(two, "default", user="games")
    ordinary.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 1), containers=6))
    ordinary.wait_until("its containers", lambda: len(ordinary.held) == 6)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] == 2)
    went = time.time()
    ordinary.end()
    job.wait_for_size(4, after=went)  # flexod has granted satellites anew
    job.stop()
    job.check_finished()
    job.check_steps()
    for event in job.events("done"):
        assert event["total"] == sum(range(event["steps"])), event
