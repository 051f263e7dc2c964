"""What a job's output says when satellites leave as planned, and at its end: none of Slurm's words."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable

import pytest
from elastic_jobs import BOUND_S, Job, Submit, take_nodes, wait_for_start

from flexo_lab import Lab
from horovod_elastic.platforms.slurm.job_control import SATELLITE

pytestmark = pytest.mark.slow


def slurms_words(job: Job) -> list[str]:
    """Lines of slurmstepd and srun, and whatever else looks like an error.

    Gloo's own library reports a build that was given up because a member was taken back meanwhile.
    """
    lines = [line for line in job.output().splitlines() if "ProcessGroupGloo.cpp" not in line]
    return [line for line in lines if re.search(r"slurm|srun|error|Traceback", line)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def last_line(job: Job) -> str:
    return job.output().splitlines()[-1]


def gpu_minutes_on_satellites(job: Job) -> float:
    """By what its workers have logged: the base has one."""
    sizes = [(event["time"], event["size"]) for event in job.events("enter") if event["rank"] == 0]
    until = [*(at for at, _ in sizes[1:]), job.events("done")[0]["time"]]
    return sum((size - 1) * (end - at) for (at, size), end in zip(sizes, until, strict=True)) / 60


def test_a_job_that_ends_with_satellites_says_what_it_gained_and_nothing_else(
    submit: Submit, alone: Lab
) -> None:
    job = submit("counting.py", elastic="1-3")
    job.wait_for_size(3)
    job.stop()
    job.check_finished()
    assert slurms_words(job) == []
    assert "GPU minute" in last_line(job)
    wait_until(lambda: "COMPLETED" in alone.run(["flexo", "events", str(job.job_id)]).stdout)
    assert "COMPLETED" in alone.run(["flexo", "why", str(job.job_id)]).stdout


@pytest.mark.thorough
def test_satellites_that_slurm_takes_back_leave_no_word_of_slurms(submit: Submit, alone: Lab) -> None:
    job = submit("counting.py", elastic="1-9")
    job.wait_for_size(9)
    asked = time.time()
    rigid = take_nodes(alone, 2, 4, 5)
    wait_for_start(job, rigid)
    job.wait_for_size(1, after=asked)
    job.wait_for_size(9, after=time.time())
    job.stop()
    job.check_finished()
    assert slurms_words(job) == []
    match = re.fullmatch(
        r"flexo: (\S+) GPU minutes? trained on satellites, (\d+) resizes?, \S+ s paused", last_line(job)
    )
    assert match is not None, last_line(job)
    assert int(match[2]) == len(job.sizes()) - 1
    trained = gpu_minutes_on_satellites(job)
    assert abs(float(match[1]) - trained) < 0.1 + 0.2 * trained


def test_a_satellite_that_is_asked_to_end_before_its_agent_is_there_ends_without_a_word(alone: Lab) -> None:
    output = alone.scratch / "asked.txt"
    step = shlex.join([sys.executable, "-I", "-S", str(SATELLITE), "srun", "sleep", "300"])
    script = alone.scratch / "asked.sbatch"
    script.write_text(f"#!/bin/sh\ntrap '' USR1\nexec {step}\n")
    submitted = ["sbatch", "--parsable", f"--output={output}", str(script)]
    number = alone.run(submitted).stdout.strip()

    def shown() -> str:
        return alone.run(["scontrol", "show", "job", number, "--oneliner"]).stdout

    def steps() -> str:
        return alone.run(["squeue", "--noheader", "--steps", f"--jobs={number}"]).stdout

    wait_until(lambda: f"{number}.0" in steps())
    alone.run(["scancel", "--batch", "--signal=USR1", number])
    wait_until(lambda: "JobState=RUNNING" not in shown() and "JobState=COMPLETING" not in shown())
    assert "JobState=COMPLETED" in shown()
    assert output.read_text() == ""


@pytest.mark.thorough
def test_a_requeued_base_takes_its_satellites_with_it_and_says_nothing_wrong(
    submit: Submit, alone: Lab
) -> None:
    job = submit("counting.py", elastic="1-5", options=("-n", "1", "--gpus-per-task=1", "--requeue"))
    job.wait_for_size(5)
    satellites = [number for number, _ in job.satellites()]
    assert satellites
    alone.run(["scontrol", "requeue", str(job.job_id)])
    job.wait_until(
        "an end of its satellites",
        lambda: not {number for number, _ in job.satellites()} & set(satellites),
    )
    job.wait_until("its beginning anew", lambda: "Restarts=1" in job.shown())
    assert "may be left" not in job.output()
    assert "exit code -15" not in job.output()
    job.cancel()
    job.check_nothing_left()
