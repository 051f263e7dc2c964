"""A script with DistributedDataParallel on a real GPU and a real NCCL grows, shrinks and loses workers."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TRAINING = Path(__file__).parents[1] / "training"
sys.path.insert(0, str(TRAINING))

from local_job import LocalJob, local_job, train_at  # noqa: E402
from one_gpu import ENVIRONMENT  # noqa: E402
from test_ddp import SCRIPT, check, steps_that_count  # noqa: E402

GPU = "cuda"


def end(job: LocalJob, killed: int = 0) -> None:
    """Tell the script to end, and check all that it did. Print rank 0's pauses between generations."""
    job.stop()
    code = job.wait()
    print(job.output()[-3000:])
    assert code == 0
    of_rank_0 = [each for each in steps_that_count(job) if not each["rank"]]
    for before, after in itertools.pairwise(of_rank_0):
        if before["world"] != after["world"]:
            pause_ms = 1e3 * (after["time"] - before["time"])
            print(f"pause of {pause_ms:.0f} ms from {before['size']} to {after['size']} workers")
    check(job, killed)


def test_a_ddp_script_on_a_gpu_grows_and_shrinks(tmp_path: Path) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--device", GPU, **ENVIRONMENT) as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        job.start("n2", 1)
        train_at(job, 4)
        job.send_away("n1")
        train_at(job, 3)
        end(job)


def test_a_ddp_script_that_is_alone_on_a_gpu_grows(tmp_path: Path) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--device", GPU, workers=1, **ENVIRONMENT) as job:
        train_at(job, 1)
        job.start("n1", 1)
        train_at(job, 2)
        end(job)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_ddp_script_on_a_gpu_outlives_a_worker(tmp_path: Path, victim: int) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--device", GPU, **ENVIRONMENT) as job:
        job.start("n1", 1)
        train_at(job, 3)
        pids = {each["rank"]: each["pid"] for each in job.events("step") if each["size"] == 3}
        os.kill(pids[victim], signal.SIGKILL)
        job.wait_until(
            "a generation without it",
            lambda: any(e["size"] == 2 and e["world"] > 2 for e in job.events("step")),
        )
        train_at(job, 3)
        end(job, killed=pids[victim])
