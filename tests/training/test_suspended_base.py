"""A base that Slurm suspends: its satellites wait, and are given back after a while. No step is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from elastic_jobs import Job, Submit

from flexo_lab import Lab
from horovod_elastic.leader.attendance import SILENCE_BOUND_S
from horovod_elastic.leader.membership.takeover import TAKEOVER_BOUND_S

pytestmark = pytest.mark.slow

MISSED_S = SILENCE_BOUND_S + TAKEOVER_BOUND_S
"""By then others have noticed a base that is gone, and go on without it."""
GRACE_S = 20


@pytest.fixture
def hasty(alone: Lab) -> Iterator[Lab]:
    """The lab with a flexod that lets a suspended base keep its satellites for GRACE_S only."""
    toml = alone.layout.flexo_toml
    before = toml.read_text()
    toml.write_text(before.replace("[controller]\n", f"[controller]\nsuspend_grace_s = {GRACE_S}\n"))
    alone.restart_flexod()
    yield alone
    toml.write_text(before)
    alone.restart_flexod()


def last_step(job: Job) -> int:
    return max(int(event["step"]) for event in job.events("commit"))


def test_satellites_wait_for_a_suspended_base_and_go_on_with_it(submit: Submit, alone: Lab) -> None:
    job = submit("counting.py", elastic="1-3")
    job.wait_for_size(3)
    alone.run(["scontrol", "suspend", str(job.job_id)])
    suspended = time.time()
    time.sleep(5.0)  # those who were about to commit have done so
    step = last_step(job)
    time.sleep(MISSED_S + 10.0)
    assert "is suspended" in alone.run(["flexo", "why", str(job.job_id)]).stdout
    assert last_step(job) == step
    assert len(job.satellites()) > 0
    assert not [event for event in job.events("enter") if event["time"] > suspended]
    alone.run(["scontrol", "resume", str(job.job_id)])
    job.wait_until("more steps", lambda: last_step(job) > step + 3)
    job.wait_for_size(3)
    job.stop()
    job.check_finished()
    job.check_steps(lost=1)


@pytest.mark.thorough
def test_a_base_that_is_resumed_without_its_satellites_goes_on_where_it_was_and_grows_again(
    submit: Submit, hasty: Lab
) -> None:
    job = submit("counting.py", elastic="1-3")
    job.wait_for_size(3)
    hasty.run(["scontrol", "suspend", str(job.job_id)])
    job.wait_until("an end of its satellites", lambda: not job.satellites())
    step, resumed = last_step(job), time.time()
    hasty.run(["scontrol", "resume", str(job.job_id)])
    job.wait_until("more steps", lambda: last_step(job) > step + 1)
    job.wait_for_size(3, after=resumed)
    job.stop()
    job.check_finished()
    job.check_steps(lost=1)
