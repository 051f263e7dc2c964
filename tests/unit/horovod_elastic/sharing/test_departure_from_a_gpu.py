"""A job that was evicted is gone when nothing of it runs: neither its process nor others of its group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from horovod_elastic.sharing.departure import Departure

pytestmark = pytest.mark.processes

TWO_PROCESSES = """
import os, time
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


@pytest.fixture
def job() -> Iterator[subprocess.Popen[str]]:
    """A job of two processes, in a group of its own. It tells the number of the second one."""
    command = [sys.executable, "-c", TWO_PROCESSES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as started:
        yield started
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def second_of(job: subprocess.Popen[str]) -> int:
    """The number of the job's other process."""
    assert job.stdout is not None
    return int(job.stdout.readline())


def wait_for(departure: Departure) -> bool:
    """Whether the departure is complete within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if departure.is_complete():
            return True
        time.sleep(0.02)
    return False


def test_a_job_is_gone_when_its_last_process_is(job: subprocess.Popen[str]) -> None:
    second, departure = second_of(job), Departure(job.pid)
    assert not departure.is_complete()
    job.kill()
    job.wait()
    assert not departure.is_complete()
    os.kill(second, signal.SIGKILL)
    assert wait_for(departure)


def test_a_process_that_nobody_has_waited_for_yet_is_gone(job: subprocess.Popen[str]) -> None:
    second_of(job)
    departure = Departure(job.pid)
    os.killpg(job.pid, signal.SIGKILL)
    assert wait_for(departure)
    assert job.wait() == -signal.SIGKILL


def test_a_process_that_has_ended_before_is_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        assert Departure(ended.pid).is_complete()


def test_without_a_group_of_its_own_only_the_process_counts() -> None:
    with subprocess.Popen(["sleep", "600"]) as started:
        departure = Departure(started.pid)
        assert not departure.is_complete()
        started.kill()
        assert wait_for(departure)
