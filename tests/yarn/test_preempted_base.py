"""A job on a real YARN whose base is above its queue's share, and is preempted by YARN for another queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import SMALL_MIB, Application, require_yarn
from yarn_jobs import submit

from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn, wait_for_nodes
from flexo_yarn import records
from flexo_yarn.application_master import Ask
from flexo_yarn.configuration import read_file
from flexo_yarn.site_settings import as_xml

pytestmark = pytest.mark.thorough
QUEUES = {
    "queues": "default,other,flex",
    "default.capacity": "45",
    "other.capacity": "50",
    "other.user-limit-factor": "-1",
    "other.maximum-am-resource-percent": "1.0",
}


@pytest.fixture
def lab() -> Iterator[YarnLab]:
    """Two nodes with four GPUs each, and two ordinary queues, each with about half of them."""
    require_yarn()
    lab = bring_up_yarn(YarnLabSpec(name=f"shares-{os.getpid()}", nodes=2))
    try:
        file = lab.yarn_layout.conf("rm") / "capacity-scheduler.xml"
        more = {f"yarn.scheduler.capacity.root.{name}": value for name, value in QUEUES.items()}
        file.write_text(as_xml({**read_file(file), **more}.items()))
        lab.kill("rm")
        lab.start("rm")
        wait_for_nodes(lab)
        yield lab
    finally:
        lab.down()


def test_a_job_whose_base_yarn_takes_ends_in_order_waits_for_its_gang_and_begins_anew(
    lab: YarnLab, tmp_path: Path
) -> None:
    job = submit(lab, tmp_path, "counting.py", elastic="6-8")
    job.wait_for_size(8)
    others = Application.submit(lab, "other", user="games")
    others.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 1), 4))
    others.wait_until("its share", lambda: len(others.held) == 4)
    job.wait_until("a word of it", lambda: "begins anew" in job.output())
    assert "preempted or out of time (SIGTERM)" in job.output()
    others.end()
    begun = max(event["time"] for event in job.events("commit"))
    job.wait_until("another run", lambda: any(event["time"] > begun for event in job.events("commit")))
    job.wait_for_size(8, after=begun)
    job.stop()
    job.check_finished()
