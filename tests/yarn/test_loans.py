"""Inference servers on a real YARN, lent to a training job by their label and taken back in time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import SMALL_MIB, Application, end_all, require_yarn, wait_for
from yarn_jobs import FLEXO, YarnJob, submit

from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn
from flexo_yarn import records
from flexo_yarn.application_master import Ask

GPUS = 4


@pytest.fixture(scope="module")
def lending() -> Iterator[YarnLab]:
    """One training node and two inference servers with four GPUs each."""
    require_yarn()
    spec = YarnLabSpec(name=f"loans-{os.getpid()}", nodes=1, infer_nodes=2, gpus_per_node=GPUS, loans=True)
    lab = bring_up_yarn(spec)
    yield lab
    lab.down()


@pytest.fixture
def lab(lending: YarnLab) -> Iterator[YarnLab]:
    """The lab, without applications before and after."""
    end_all(lending)
    lending.start_flexod()
    yield lending
    end_all(lending)


def server_wanted(lab: YarnLab, servers: int) -> Application:
    """An inference application that asks for so many servers."""
    inference = Application.submit(lab, "infer", user="serving")
    inference.master.ask(Ask(1, records.resource(SMALL_MIB, 1, GPUS), servers))
    return inference


def given_within(inference: Application, servers: int, bound_s: float) -> None:
    """It gets all servers that it has asked for, within this time."""
    asked = time.time()
    inference.wait_until("its servers", lambda: len(inference.held) >= servers)
    assert time.time() - asked < bound_s


def on_loan(lab: YarnLab) -> int:
    """How many servers `flexo loans` says are on loan."""
    return len(json.loads(lab.run([FLEXO, "loans", "--json"]).stdout)["loans"])


def known_workers(lab: YarnLab) -> int:
    """How many workers flexod says that the only job has."""
    (job,) = json.loads(lab.run([FLEXO, "jobs", "--json"]).stdout)["jobs"]
    return int(job["workers"])


def grown_onto_a_loan(lab: YarnLab, folder: Path) -> YarnJob:
    """A job that has all of the training node, and the one server that flexod lends."""
    job = submit(lab, folder, "counting.py", elastic="2-12")
    job.wait_for_size(2 * GPUS)
    assert on_loan(lab) == 1
    wait_for("flexod to know its satellites", lambda: known_workers(lab) == 2 * GPUS)
    return job


def finish(job: YarnJob) -> None:
    job.stop()
    job.check_finished()
    for event in job.events("done"):
        assert event["total"] == sum(range(event["steps"])), event
    job.check_steps()


def test_a_job_grows_onto_a_lent_server_and_leaves_it_for_inference_without_losing_a_batch(
    lab: YarnLab, tmp_path: Path
) -> None:
    job = grown_onto_a_loan(lab, tmp_path)
    ordinary = Application.submit(lab, "default", user="games")
    ordinary.master.ask(Ask(1, records.resource(SMALL_MIB, 1, GPUS), node=lab.yarn_layout.node(2)))
    inference = server_wanted(lab, 2)
    given_within(inference, 2, bound_s=10)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] == GPUS)
    ordinary.beat()
    assert not ordinary.held, "an ordinary queue has no access to inference servers"
    ordinary.end()
    inference.end()
    wait_for("the server to be lent again", lambda: on_loan(lab) == 1)
    finish(job)


@pytest.mark.thorough
def test_without_flexod_yarn_itself_gives_lent_servers_back(lab: YarnLab, tmp_path: Path) -> None:
    job = grown_onto_a_loan(lab, tmp_path)
    lab.stop_flexod(kill=True)
    inference = server_wanted(lab, 2)
    given_within(inference, 2, bound_s=25)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] == GPUS)
    inference.end()
    finish(job)
