"""Loops of Accelerate, HF's Trainer and Lightning, unchanged: they grow, shrink and lose workers.

set-up installs none of these frameworks. To run these tests, install accelerate, transformers or lightning
beside flexo; tests of those that are missing are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job  # noqa: E402
from test_ddp import steps_that_count, train_at  # noqa: E402

SAMPLES, EPOCHS, GLOBAL_BATCH, ACCUMULATED = 2000, 6, 64, 3
STEPS = 11
"""Of an epoch: of 32 batches, always 3 together."""


def needs(*frameworks: str) -> pytest.MarkDecorator:
    """Skip a test if one of these is not installed."""
    missing = [each for each in frameworks if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"{', '.join(missing)}: not installed in this environment"
    )


ACCELERATE = pytest.param("accelerated.py", marks=needs("accelerate"))
TRAINER = pytest.param("hf_trainer.py", marks=needs("accelerate", "transformers"))
LIGHTNING = pytest.param("lit.py", marks=needs("lightning"))


def train(folder: Path, script: str, *more: str, **variables: str) -> Any:
    options = ("--samples", str(SAMPLES), "--epochs", str(EPOCHS), "--accumulate", str(ACCUMULATED))
    return local_job(folder, HERE / "scripts" / script, *options, "--sleep", "1.0", *more, **variables)


def finish(job: LocalJob) -> None:
    """Have the script take the rest of its steps at full speed."""
    job.stop()
    assert job.wait() == 0, job.output()


def check(job: LocalJob, victim: int = 0) -> None:
    """Each sample is used once an epoch; all replicas are alike; totals, rates and evaluations are right.

    A `victim` (its pid) may have had no time to log a step that the others did take.
    """
    steps = steps_that_count(job)
    assert max(each["size"] for each in steps) >= 3
    unlogged = _unlogged(steps, victim)
    for epoch in range(EPOCHS):
        used = Counter(number for each in steps if each["epoch"] == epoch for number in each["numbers"])
        missing = SAMPLES - len(used)
        assert missing == 0 or (unlogged == epoch and missing <= ACCUMULATED * GLOBAL_BATCH // 2)
        assert sum(used.values()) - len(used) <= 3  # the last batch is filled up, for equally many each
    alike = defaultdict(set)
    for each in steps:
        alike[each["taken"]].add((each["digest"], each["rate"], each["epoch"], each.get("global_step")))
    assert [taken for taken, states in alike.items() if len(states) > 1] == []
    assert all(each["counted"] == each["taken"] for each in steps if "counted" in each)
    assert len({(each["steps"], each["total"]) for each in job.events("began")}) == 1
    ends = job.events("end")
    assert len(ends) >= 2
    if "global_step" in ends[0]:
        assert {each["global_step"] for each in ends} == {STEPS * EPOCHS}
        assert len({(each["best"], each["logged"]) for each in ends}) == 1
    assert len({each.get("saved") for each in ends}) == 1
    if "saved" in ends[0]:  # in a step without effect, none is written
        assert ends[0]["saved"] >= STEPS * EPOCHS // 5 - 2
    last = [each for each in job.events("epoch") if each["epoch"] == EPOCHS - 1]
    assert {each["rank"] for each in last} == {each["rank"] for each in ends}
    assert last[0]["accuracy"] > 0.9


def _unlogged(steps: list[dict[str, Any]], victim: int) -> int:
    """The epoch of a step in which the victim may have taken part, without a line in its log; -1: none."""
    of_victim = [each for each in steps if each["pid"] == victim]
    last = max((each["taken"] for each in of_victim), default=0)
    worlds = {each["world"] for each in of_victim}
    later = [each for each in steps if each["taken"] == last + 1 and each["world"] in worlds]
    return int(later[0]["epoch"]) if later else -1


@pytest.mark.parametrize("script", [ACCELERATE, TRAINER, LIGHTNING])
def test_a_loop_of_a_framework_grows_and_shrinks(tmp_path: Path, script: str) -> None:
    """Newcomers come in the middle of an epoch, and take over what the framework counts."""
    with train(tmp_path / "job", script) as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        job.start("n2", 1)
        train_at(job, 4)
        job.send_away("n1")
        train_at(job, 3)
        finish(job)
        check(job)
        first = [each["pid"] for each in steps_that_count(job) if each["rank"] == 0]
        assert len(set(first)) == 1  # so that there is one log, and one run of a tracker


@pytest.mark.parametrize("script", [ACCELERATE, TRAINER, LIGHTNING])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_loop_of_a_framework_outlives_a_worker(tmp_path: Path, script: str, victim: int) -> None:
    """The others go on from the last step, and another worker comes in the place of the one that died.

    Each tracker has one run. If rank 0 has died, its successor, which stays rank 0, goes on with the run.
    """
    trackers = [each for each in ("tensorboard", "wandb") if importlib.util.find_spec(each)]
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    with train(tmp_path / "job", script, "--report", ",".join(trackers) or "none", **offline) as job:
        job.start("n1", 1)
        train_at(job, 3)
        pids = {each["rank"]: each["pid"] for each in job.events("step") if each["size"] == 3}
        os.kill(pids[victim], signal.SIGKILL)
        killed_in = max(each["world"] for each in job.events("step"))
        job.wait_until(
            "a generation without it",
            lambda: any(each["size"] == 2 and each["world"] > killed_in for each in job.events("step")),
        )
        train_at(job, 3)
        finish(job)
        check(job, pids[victim])
        first = [each["pid"] for each in steps_that_count(job) if each["rank"] == 0]
        assert set(first) == {pids[0], pids[1 - victim]}
        if "tensorboard" in trackers:
            check_tensorboard(job.folder / "logs", len(set(first)))
        if "wandb" in trackers:
            runs = [each.name.partition("-run-")[2] for each in tmp_path.glob("wandb/offline-run-*")]
            assert len(runs) == len(set(first))
            assert len({each.partition("-")[2] for each in runs}) == 1


def check_tensorboard(logs: Path, writers: int) -> None:
    """One folder has the losses that each writer, the rank 0 of its time, has logged; none is there twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps: dict[Path, list[list[int]]] = defaultdict(list)
    for file in sorted(logs.rglob("events.out.tfevents.*")):
        read = EventAccumulator(str(file), {"scalars": 0})
        read.Reload()
        tag = next((each for each in read.Tags()["scalars"] if "loss" in each and "eval" not in each), None)
        if tag is not None:
            steps[file.parent].append([each.step for each in read.Scalars(tag)])
    assert len(steps) == 1
    (by_writer,) = steps.values()
    assert len(by_writer) == writers
    together = [step for each in by_writer for step in each]
    assert together == sorted(set(together))


@needs("accelerate", "transformers")
def test_a_trainer_that_gathers_its_samples_has_as_many_in_each_worker(tmp_path: Path) -> None:
    """And as many steps as it has counted: a third of 64 samples is no whole number."""
    with train(tmp_path / "job", "hf_trainer.py", "--gather") as job:
        train_at(job, 2)
        job.start("n1", 1)
        train_at(job, 3)
        finish(job)
        check(job)
        steps = [each for each in steps_that_count(job) if each["size"] == 3]
        lengths = defaultdict(set)
        for each in steps:
            lengths[each["taken"]].add(len(each["numbers"]))
        assert all(len(each) == 1 for each in lengths.values())
        assert {22 + 21 + 21} in lengths.values()  # the batches of one step


@needs("accelerate")
def test_a_base_of_one_worker_grows_with_accelerate(tmp_path: Path) -> None:
    """Accelerate would leave the shuffling of a single process to that process."""
    folder = tmp_path / "job"
    script = HERE / "scripts" / "accelerated.py"
    options = ("--samples", str(SAMPLES), "--epochs", "4", "--sleep", "0.1")
    with local_job(folder, script, *options, workers=1) as job:
        train_at(job, 1)
        job.start("n1", 1)
        train_at(job, 2)
        finish(job)
        steps = steps_that_count(job)
        for epoch in range(4):
            used = Counter(number for each in steps if each["epoch"] == epoch for number in each["numbers"])
            assert len(used) == SAMPLES
            assert sum(used.values()) - SAMPLES <= 1


@pytest.mark.parametrize("script", [ACCELERATE, LIGHTNING])
def test_a_loop_whose_samples_cannot_be_dealt_out_keeps_its_size(tmp_path: Path, script: str) -> None:
    """It says why, and trains with the workers of its base."""
    with train(tmp_path / "job", script, "--iterable") as job:
        train_at(job, 2)
        job.start("n1", 1)
        finish(job)
        assert "this job keeps its size" in job.output()
        assert "IterableDataset" in job.output()
        assert {each["size"] for each in job.events("step")} == {2}
