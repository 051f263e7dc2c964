"""Reproducible mode: a training has the same bits, whatever its size was and however often that changed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job  # noqa: E402

SCRIPT = HERE / "scripts" / "same_bits.py"
VIRTUAL = 4
STEPS = 1200


def slots(job: LocalJob) -> list[tuple[int, int]]:
    """The sizes that the job has had, as its output says: workers, and the steps before."""
    told = re.findall(r"(\d+) workers?.* on .* after (\d+) batch", job.output())
    return [(int(workers), int(steps)) for workers, steps in told]


def results(job: LocalJob) -> dict[int, tuple[Any, ...]]:
    """By rank: digests of its state and its losses, and what it draws next."""
    ends = [each for each in job.events("end") if each["world"]]
    return {each["rank"]: (each["state"], each["history"], each["drawn"]) for each in ends}


def wait_for_slots(job: LocalJob, count: int) -> None:
    job.wait_until(f"{count} slots", lambda: slots(job)[-1:] and slots(job)[-1][0] == count)


def fixed(folder: Path, size: int, *arguments: str) -> dict[int, tuple[Any, ...]]:
    """The results of a job that keeps its size."""
    how = {"workers": size, "maximum": size, "FLEXO_REPRODUCIBLE": str(VIRTUAL)}
    with local_job(folder, SCRIPT, "--steps", str(STEPS), *arguments, **how) as job:
        assert job.wait() == 0, job.output()
        return results(job)


def resized(folder: Path, *arguments: str, sleep: float = 0.03) -> dict[int, tuple[Any, ...]]:
    """The results of a job that goes from 2 slots to 3, 4 and back to 2."""
    how = ["--steps", str(STEPS), "--sleep", str(sleep), *arguments]
    with local_job(folder, SCRIPT, *how, maximum=VIRTUAL, FLEXO_REPRODUCIBLE=str(VIRTUAL)) as job:
        wait_for_slots(job, 2)
        job.start("n1", 1)
        wait_for_slots(job, 3)
        job.start("n2", 1)
        wait_for_slots(job, 4)
        job.send_away("n1")
        wait_for_slots(job, 3)
        job.send_away("n2")
        wait_for_slots(job, 2)
        assert job.wait() == 0, job.output()
        return results(job)


@pytest.mark.parametrize("loading", [0, 1], ids=["in-process", "worker-process"])
def test_bits_are_the_same_whatever_the_resizes(tmp_path: Path, loading: int) -> None:
    """Dropout, unsynchronised batch statistics, augmented samples and losses of all ranks."""
    alone = fixed(tmp_path / "one", 1, "--workers", str(loading))
    assert sorted(alone) == list(range(VIRTUAL))
    assert fixed(tmp_path / "four", 4, "--workers", str(loading)) == alone
    assert resized(tmp_path / "resized", "--workers", str(loading)) == alone
