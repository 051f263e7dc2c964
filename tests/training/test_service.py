"""Jobs whose gradients are summed by Aggregators: deaths cost no mini-batch, and no sample is used twice."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import BASE, LocalJob, local_job, train_at  # noqa: E402

from flexo_bench.local_job.pool import pool_aggregator  # noqa: E402
from horovod_elastic.aggregation import control  # noqa: E402
from horovod_elastic.core.choice import SERVICE  # noqa: E402

DDP = HERE / "scripts" / "plain_ddp.py"
HOROVOD = HERE.parent / "chaos" / "train.py"
SAMPLES = 4000


@contextmanager
def service_job(folder: Path, script: Path, *arguments: str, workers: int = 2) -> Iterator[LocalJob]:
    """A job with `--core=service`."""
    with local_job(folder, script, *arguments, workers=workers, FLEXO_CORE=SERVICE) as job:
        yield job


def kill_aggregators(job: LocalJob) -> None:
    """Kill those that serve, and those that would take their place."""
    for each in job.aggregator_processes():
        with suppress(psutil.NoSuchProcess):
            each.kill()


def pids(job: LocalJob, world: int) -> dict[int, int]:
    """The workers of that generation, by rank."""
    return {each["rank"]: each["pid"] for each in job.events("step") if each["world"] == world}


def check_ddp(job: LocalJob, dead: set[int]) -> None:
    """Each sample once an epoch, no step lost, and all models alike."""
    steps = [each for each in job.events("step") if each["world"]]
    for epoch in range(1 + max(each["epoch"] for each in steps)):
        used = Counter(number for each in steps if each["epoch"] == epoch for number in each["numbers"])
        unlogged = 22 * len(dead)  # a worker may die between its step and its line in the log
        assert SAMPLES - unlogged <= len(used) <= SAMPLES
        assert sum(used.values()) - len(used) <= 8, "the last batch is filled up"
    taken = defaultdict(list)
    alike = defaultdict(set)
    for each in steps:
        taken[each["pid"]].append(each["taken"])
        alike[each["taken"]].add((each["digest"], each["rate"]))
    for pid, numbers in taken.items():
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), f"worker {pid} went back or left out"
    founders = {each["pid"] for each in steps if each["world"] == 1}
    muted = [each for each in job.events("step") if not each["world"] and each["pid"] in founders]
    assert muted == [], "steps without effect"
    assert [step for step, states in alike.items() if len(states) > 1] == []


def test_aggregators_that_are_killed_change_no_bit(tmp_path: Path) -> None:
    """The sums that were under way are made anew, in the same order."""
    how = "--samples", "1280", "--epochs", "6", "--sleep", "0.04"
    digests = []
    for kills in (0, 6):
        dice = random.Random(kills)
        with service_job(tmp_path / str(kills), DDP, *how) as job:
            train_at(job, 2)
            for _ in range(kills):
                time.sleep(dice.uniform(0.2, 0.6))
                job.wait_until("the one that waited", job.aggregators)
                job.aggregators()[0].kill()
            assert job.wait() == 0, job.output()
            assert job.output().count("is started again") == kills
            assert "generation 2" not in job.output(), "the job stayed as it was"
            digests.append({each["taken"]: each["digest"] for each in job.events("step")})
    assert digests[0] == digests[1]


@pytest.mark.thorough
def test_workers_that_are_killed_cost_a_ddp_script_no_mini_batch(tmp_path: Path) -> None:
    dice = random.Random(3)
    dead = set()
    with service_job(tmp_path / "job", DDP) as job:
        job.start("n1", 1)
        world = train_at(job, 3)
        for victim in (2, 1, 2):
            time.sleep(dice.uniform(0.1, 0.8))
            pid = pids(job, world)[victim]
            os.kill(pid, signal.SIGKILL)
            dead.add(pid)
            world = train_at(job, 3, after=world)
        job.stop()
        assert job.wait() == 0, job.output()
        check_ddp(job, dead)


@pytest.mark.thorough
def test_a_node_that_is_lost_with_its_aggregator_costs_no_mini_batch(tmp_path: Path) -> None:
    """The leader waits for the node's agent to come back; training goes on meanwhile."""
    with service_job(tmp_path / "job", DDP) as job:
        job.start("n1", 1)
        world = train_at(job, 3)
        time.sleep(1)
        dead = {pids(job, world)[2]}
        job.supervisors["n1"].kill()
        train_at(job, 2, after=world)
        job.stop()
        assert job.wait() == 0, job.output()
        check_ddp(job, dead)


@pytest.mark.thorough
def test_workers_that_are_killed_cost_a_horovod_script_no_mini_batch(tmp_path: Path) -> None:
    """What the dead worker had not contributed is trained on by others: once."""
    dice = random.Random(4)
    dead: set[int] = set()
    with service_job(tmp_path / "job", HOROVOD, "--samples", "400", workers=3) as job:
        for _ in range(2):
            job.wait_until("three workers", lambda: len(training(job, dead)) == 3)
            time.sleep(dice.uniform(0.5, 1.5))
            pid = max(training(job, dead).items())[1]
            os.kill(pid, signal.SIGKILL)
            dead.add(pid)
        job.wait_until("three workers", lambda: len(training(job, dead)) == 3)
        time.sleep(2)
        job.stop()
        assert job.wait() == 0, job.output()
        check_horovod(job, dead)


def training(job: LocalJob, dead: set[int]) -> dict[int, int]:
    """The pids of those that have trained in the last second, by rank."""
    recent = [each for each in job.events("batch") if each["time"] > time.time() - 1]
    return {each["rank"]: each["pid"] for each in recent if each["size"] == 3 and each["pid"] not in dead}


def check_horovod(job: LocalJob, dead: set[int]) -> None:
    """Mini-batches are logged before they count: the last one of a dead worker may be another's as well."""
    batches = job.events("batch")
    by_worker: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for each in batches:
        by_worker[each["pid"]].append(each)
    for pid, its in by_worker.items():
        steps = [each["step"] for each in its]
        assert steps == list(range(steps[0], steps[-1] + 1)), f"worker {pid} went back"
    excused = {sample for pid in dead for sample in by_worker[pid][-1]["samples"]}
    last = max(each["epoch"] for each in batches)
    for epoch in range(last + 1):
        used = Counter(sample for each in batches if each["epoch"] == epoch for sample in each["samples"])
        assert {sample for sample, times in used.items() if times > 1} <= excused
        assert epoch == last or len(used) == 400


@pytest.mark.thorough
def test_a_pools_aggregators_that_die_cost_no_mini_batch(tmp_path: Path) -> None:
    """Two of them sum the parts of both nodes. When both are gone, the nodes' own do."""
    with (
        service_job(tmp_path / "job", DDP) as job,
        pool_aggregator(tmp_path / "p1", str(BASE)) as (one, assigned_one),
        pool_aggregator(tmp_path / "p2", str(BASE)) as (other, assigned_other),
    ):
        train_at(job, 2)
        (own,) = job.aggregators()
        folder = Path(own.cmdline()[own.cmdline().index("--folder") + 1])
        control.assign(folder, 1, [assigned_one, assigned_other])
        job.wait_until("the assignment", lambda: (used := control.usage(folder)) and used.version == 1)
        job.start("n1", 1)  # the next generation uses them, too
        train_at(job, 3)
        for process in (one, other):
            time.sleep(1)
            process.kill()
        time.sleep(1)
        job.stop()
        assert job.wait() == 0, job.output()
        assert "all-reduce" not in job.output()
        check_ddp(job, set())


def test_a_job_without_aggregators_goes_on_with_its_all_reduce(tmp_path: Path) -> None:
    """Its Aggregators die again and again, faster than they can be started."""
    over = threading.Event()

    with service_job(tmp_path / "job", DDP) as job:
        train_at(job, 2)
        time.sleep(1)

        def kill_all() -> None:
            while not over.is_set():
                kill_aggregators(job)
                time.sleep(0.02)

        killer = threading.Thread(target=kill_all)
        killer.start()
        try:
            job.wait_until("the all-reduce", lambda: "uses its all-reduce" in job.output())
            train_at(job, 2, after=1)
        finally:
            over.set()
            killer.join()
        job.stop()
        assert job.wait() == 0, job.output()
        used = Counter(
            number
            for each in job.events("step")
            if each["world"] and each["epoch"] == 0
            for number in each["numbers"]
        )
        assert len(used) == SAMPLES, json.dumps(used.most_common(3))
