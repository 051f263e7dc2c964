"""The order in which jobs of a real YARN wait, as a policy of flexod's has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import SMALL_MIB, Application, wait_for
from yarn_jobs import submit

from flexo_lab.yarn import YarnLab
from flexo_yarn import records
from flexo_yarn.application_master import Ask

pytestmark = pytest.mark.thorough
HIGHEST = 10_000


@pytest.fixture
def ordering(lab: YarnLab) -> Iterator[YarnLab]:
    """The lab, with a flexod that puts pending jobs in order."""
    before = lab.layout.flexo_toml.read_text()
    lab.stop_flexod()
    lab.layout.flexo_toml.write_text(before.replace("[controller]", '[controller]\norder = "policy"'))
    lab.start_flexod()
    yield lab
    lab.stop_flexod()
    lab.layout.flexo_toml.write_text(before)
    lab.start_flexod()


def test_jobs_that_wait_have_the_priorities_of_the_policys_order(ordering: YarnLab, tmp_path: Path) -> None:
    holder = Application.submit(ordering, "default", user="games")
    holder.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 1), 7))
    holder.wait_until("the GPUs", lambda: len(holder.held) == 7)
    jobs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        jobs.append(submit(ordering, tmp_path / name, "counting.py", elastic="4-8"))

    def priorities() -> list[int]:
        holder.beat()
        return [job.report().priority.priority for job in jobs]

    wait_for("both to be in flexod's band", lambda: all(each > HIGHEST // 2 for each in priorities()))
    first, second = priorities()
    assert first > second
    holder.end()
    jobs[0].wait_for_size(4)
    jobs[0].stop()
    jobs[1].wait_for_size(4)
    jobs[1].stop()
    for job in jobs:
        job.check_finished()
