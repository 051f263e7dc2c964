"""Reproducible mode: a training has the same bits, whatever its size was and however often that changed."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from thorough import THOROUGH, rare

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job  # noqa: E402

SCRIPT = HERE / "scripts" / "same_bits.py"
VIRTUAL = 4
LOST = "a virtual worker was lost"
Results = dict[int, tuple[Any, ...]]


def sizes(job: LocalJob) -> list[int]:
    """The slots that the job has used, one size after the other, as its output says."""
    return [int(size) for size in re.findall(r"(\d+) workers?(?: \(4 virtual ones\))? on ", job.output())]


def wait_for(job: LocalJob, size: int) -> None:
    job.wait_until(f"{size} slots", lambda: sizes(job)[-1:] == [size])


def results(job: LocalJob) -> Results:
    """By rank: its steps, digests of its state and of its losses, and the numbers that it draws next."""
    ends = [each for each in job.events("end") if each["world"]]
    names = ("steps", "state", "history", "drawn")
    return {each["rank"]: tuple(each[name] for name in names) for each in ends}


def fixed(folder: Path, size: int, number: int, *arguments: str) -> Results:
    """The results of a job that keeps its size, after this number of steps."""
    steps = ("--steps", str(number))
    reproducible = {"FLEXO_REPRODUCIBLE": str(VIRTUAL)}
    with local_job(folder, SCRIPT, *steps, *arguments, workers=size, maximum=size, **reproducible) as job:
        assert job.wait() == 0, job.output()
        return results(job)


def resized(folder: Path, *arguments: str) -> Results:
    """The results of a job that goes from 2 slots to 3, in thorough runs to 4, and back while it trains."""
    reproducible = {"FLEXO_REPRODUCIBLE": str(VIRTUAL)}
    with local_job(folder, SCRIPT, "--sleep", "0.03", *arguments, maximum=VIRTUAL, **reproducible) as job:
        wait_for(job, 2)
        job.start("n1", 1)
        wait_for(job, 3)
        if THOROUGH:
            job.start("n2", 1)
            wait_for(job, 4)
            job.send_away("n2")
            wait_for(job, 3)
        job.send_away("n1")
        wait_for(job, 2)
        job.stop()
        assert job.wait() == 0, job.output()
        assert sizes(job) == ([2, 3, 4, 3, 2] if THOROUGH else [2, 3, 2])
        assert LOST not in job.output()
        return results(job)


@pytest.mark.parametrize(
    "loading",
    [
        ("--workers", "0"),
        rare(("--workers", "1")),
        rare(("--workers", "1", "--persistent", "--undivided")),
    ],
    ids=["in-process", "worker-process", "undivided"],
)
def test_bits_are_the_same_whatever_the_resizes(tmp_path: Path, loading: tuple[str, ...]) -> None:
    """Parameters, batch statistics, moments of the optimizer, losses and random numbers of each rank."""
    found = resized(tmp_path / "resized", *loading)
    assert sorted(found) == list(range(VIRTUAL))
    assert len({state for _, state, _, _ in found.values()}) == VIRTUAL, "ranks have statistics of their own"
    (steps,) = {steps for steps, _, _, _ in found.values()}
    for size in (1, 4) if THOROUGH else (1,):
        assert fixed(tmp_path / str(size), size, steps, *loading) == found


@pytest.mark.thorough
def test_a_job_that_loses_a_virtual_worker_trains_on_and_says_that_bits_may_differ(tmp_path: Path) -> None:
    reproducible = {"FLEXO_REPRODUCIBLE": str(VIRTUAL)}
    steps = ("--sleep", "0.02")
    with local_job(tmp_path / "job", SCRIPT, *steps, maximum=VIRTUAL, **reproducible) as job:
        job.wait_until("steps", lambda: len(job.events("step")) > 10 * VIRTUAL)
        victim = next(each["pid"] for each in job.events("step") if each["rank"] == VIRTUAL - 1)
        os.kill(victim, signal.SIGKILL)
        job.wait_until("the next generation", lambda: sizes(job) == [2, 2])
        job.stop()
        assert job.wait() == 0, job.output()
        assert job.output().count(LOST) == 1
        assert sorted(results(job)) == list(range(VIRTUAL))


def test_a_horovod_script_is_refused_by_name(tmp_path: Path) -> None:
    with local_job(tmp_path / "job", HERE / "scripts" / "counting.py", FLEXO_REPRODUCIBLE="2") as job:
        assert job.wait() == 1
        assert "--reproducible is for scripts of torch.distributed" in job.output()
