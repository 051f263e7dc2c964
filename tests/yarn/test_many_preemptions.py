"""Twenty satellites that YARN itself takes, with no flexod to be quicker: no batch is lost or repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import SMALL_MIB, Application
from yarn_jobs import submit

from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn
from flexo_yarn import records
from flexo_yarn.application_master import Ask

pytestmark = pytest.mark.thorough

NODES, GPUS, PREEMPTIONS = 6, 2, 20


@pytest.fixture
def wide_lab() -> Iterator[YarnLab]:
    """A lab of many small nodes, so that a job has many satellites."""
    lab = bring_up_yarn(YarnLabSpec(name=f"wide-{os.getpid()}", nodes=NODES, gpus_per_node=GPUS))
    yield lab
    lab.down()


@pytest.mark.timeout(900)
def test_twenty_preemptions_by_yarn_lose_no_batch(wide_lab: YarnLab, tmp_path: Path) -> None:
    most = NODES * GPUS
    wanted = most - 2 * GPUS
    job = submit(wide_lab, tmp_path, "counting.py", elastic=f"2-{most}")
    preempted = 0
    while preempted < PREEMPTIONS:
        job.wait_for_size(most)
        wide_lab.stop_flexod(kill=True)
        before = len(job.supervisors(b"--grant"))
        others = Application.submit(wide_lab, "default", user="games")
        others.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 1), containers=wanted))
        others.wait_until("its containers", lambda others=others: len(others.held) == wanted)
        job.wait_until("fewer workers", lambda: job.sizes()[-1] <= most - wanted)
        preempted += before - len(job.supervisors(b"--grant"))
        others.end()
        wide_lab.start_flexod()
    job.stop()
    job.check_finished()
    job.check_steps()
    for event in job.events("done"):
        assert event["total"] == sum(range(event["steps"])), event
