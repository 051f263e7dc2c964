"""Scripts that declare their state by flexo.elastic(...): they are resized as plain DDP scripts are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from thorough import rare

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import local_job  # noqa: E402
from test_ddp import states_differ, steps_that_count, train_at  # noqa: E402

SCRIPT = HERE / "scripts" / "declared.py"
SAMPLES, WORKERS_BATCH = 2400, 8


@pytest.mark.parametrize(
    "way",
    [rare("own_average"), "stream", rare("counted_batches"), rare("own_sampler")],
)
def test_it_grows_and_shrinks_and_outlives_a_worker(tmp_path: Path, way: str) -> None:
    """Replicas agree after every step, on models and declared state; each sample is used once."""
    with local_job(tmp_path / "job", SCRIPT, "--way", way) as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        job.send_away("n1")
        train_at(job, 2)
        steps = job.events("step")
        newest = max(each["world"] for each in steps)
        victim = next(
            each["pid"] for each in reversed(steps) if each["world"] == newest and each["rank"] == 1
        )
        os.kill(victim, signal.SIGKILL)
        job.start("n2", 1)
        train_at(job, 3)
        job.stop()
        assert job.wait() == 0, job.output()
        counted = steps_that_count(job)
    assert {each["size"] for each in counted} == {1, 2, 3}
    assert states_differ(counted) == []
    check_samples(counted, victim, in_order=way != "counted_batches")


def check_samples(steps: list[dict[str, Any]], killed: int, *, in_order: bool) -> None:
    """None twice, and none left out but the killed worker's of its last step, which may not be on record."""
    last_words = max(each["steps"] for each in steps if each["pid"] == killed)
    last_epoch = max(each["epoch"] for each in steps)
    for epoch in range(last_epoch + 1):
        of_epoch = [each for each in steps if each["epoch"] == epoch]
        used = Counter(number for each in of_epoch for number in each["numbers"])
        together = max(each["size"] for each in of_epoch) * WORKERS_BATCH
        unlogged = together if any(each["steps"] == last_words + 1 for each in of_epoch) else 0
        if in_order:
            assert max(used) + 1 - len(used) <= unlogged
        if epoch < last_epoch:
            assert SAMPLES - len(used) <= unlogged + (together - 1 if in_order else 0)
        repeated = sum(used.values()) - len(used)
        assert repeated <= (0 if in_order else 2), "DistributedSampler fills the last batch up"
    numbers = {each["steps"] for each in steps}
    assert len(numbers) >= max(numbers) - min(numbers), "no step is left out but one that is not on record"


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("undeclared_model", "SGD trains parameters that no state of flexo.elastic() holds"),
        rare("worker_processes", "num_workers=1"),
    ],
)
def test_a_job_whose_declaration_is_not_enough_keeps_its_size(tmp_path: Path, way: str, says: str) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--way", way) as job:
        assert job.wait() == 0, job.output()
        assert says in job.output().partition("keeps its size:")[2]
        assert {each["size"] for each in job.events("step")} == {2}


def test_state_that_is_declared_after_the_first_step_is_an_error(tmp_path: Path) -> None:
    with local_job(tmp_path / "job", SCRIPT, "--way", "too_late") as job:
        assert job.wait() != 0
        assert "flexo.elastic() comes after the first step" in job.output()


@pytest.mark.thorough
def test_the_same_script_trains_under_torchrun(tmp_path: Path) -> None:
    """Declaring is without effect there."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = ["--log-dir", str(tmp_path), "--way", "own_average", "--steps", "20", "--sleep", "0"]
    subprocess.run(
        [*torchrun, str(SCRIPT), *arguments],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=120,
    )
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sum('"steps": 19' in line for line in lines) == 2
