"""Scripts whose model is spread over a unit of two workers: units come, go and die as a whole."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from thorough import rare

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job  # noqa: E402
from test_ddp import steps_that_count, train_at  # noqa: E402

SCRIPT = HERE / "scripts" / "in_units.py"
UNIT, SAMPLES, BATCH = 2, 2000, 64
"""FSDP's shards with replicas, and tensor parallelism with replicas."""


def check(job: LocalJob, way: str, killed: int = 0) -> None:
    """Workers in the same place of each unit have the same shards; each sample is used once an epoch.

    The last step of a worker that was `killed` (its pid) may not be on record.
    """
    steps = steps_that_count(job)
    alike = defaultdict(set)
    for each in steps:
        alike[each["taken"], each["rank"] % UNIT].add((*each["state"], each["rate"]))
    assert [place for place, states in alike.items() if len(states) > 1] == []
    assert len({states.pop() for (taken, _), states in alike.items() if taken == 9}) == 2, "shards differ"
    for place in range(UNIT):
        numbers = sorted(taken for taken, each in alike if each == place)
        assert numbers == list(range(1, len(numbers) + 1)), "no step is missing"
    samples_of = [each for each in steps if way == "hsdp" or each["rank"] % UNIT == 0]
    last_words = max((each["taken"] for each in steps if each["pid"] == killed), default=0)
    for epoch in range(max(each["epoch"] for each in steps)):
        of_epoch = [each for each in samples_of if each["epoch"] == epoch]
        used = Counter(number for each in of_epoch for number in each["numbers"])
        unlogged = any(each["taken"] == last_words + 1 for each in of_epoch)
        assert len(used) == SAMPLES or (killed and unlogged and len(used) >= SAMPLES - BATCH)
        assert sum(used.values()) - len(used) <= 6
    sizes = {each["size"] for each in steps}
    assert all(size % UNIT == 0 for size in sizes), sizes


def norms(job: LocalJob, size: int) -> dict[tuple[int, ...], float]:
    """The norms of the gradients, by the step and its samples, of the steps of so many workers."""
    by_step = defaultdict(list)
    for each in steps_that_count(job):
        if each["size"] == size:
            by_step[each["taken"]].append(each)
    return {
        (taken, *sorted(number for each in told for number in each["numbers"])): told[0]["norm"]
        for taken, told in by_step.items()
        if len(told) == size
    }


@pytest.mark.parametrize("way", ["hsdp", rare("tp")])
def test_a_job_grows_and_shrinks_by_whole_units(tmp_path: Path, way: str) -> None:
    """From one unit to three and back to two."""
    with local_job(tmp_path / "job", SCRIPT, "--way", way, unit=UNIT) as job:
        train_at(job, 2)
        job.start("n1", 2)
        train_at(job, 4)
        job.start("n2", 2)
        train_at(job, 6)
        job.send_away("n1")
        train_at(job, 4)
        job.stop()
        assert job.wait() == 0, job.output()
        check(job, way)
        assert "exception" not in job.output().lower()


@pytest.mark.parametrize(
    ("way", "victim"),
    [
        rare("hsdp", 0),
        ("tp", 3),
        rare("hsdp", 3),
        rare("tp", 0),
    ],
)
def test_a_unit_that_loses_a_worker_ends_and_comes_again(tmp_path: Path, way: str, victim: int) -> None:
    """The other unit goes on alone meanwhile, from the last step that all have taken."""
    with local_job(tmp_path / "job", SCRIPT, "--way", way, unit=UNIT) as job:
        job.start("n1", 2)
        train_at(job, 4)
        pids = {each["rank"]: each["pid"] for each in job.events("step") if each["size"] == 4}
        os.kill(pids[victim], signal.SIGKILL)
        job.wait_until("a unit alone", lambda: _newest(job)["size"] == 2)
        train_at(job, 4)
        job.stop()
        assert job.wait() == 0, job.output()
        check(job, way, killed=pids[victim])
        later = {each["pid"] for each in steps_that_count(job) if each["world"] == _newest(job)["world"]}
        gone = {pids[victim], pids[victim ^ 1]}
        assert later.isdisjoint(gone)
        assert len(later - set(pids.values())) == 2


def _newest(job: LocalJob) -> dict[str, Any]:
    return max(steps_that_count(job), key=lambda each: each["world"])


@pytest.mark.thorough
def test_gradients_are_those_of_the_base_at_every_size(tmp_path: Path) -> None:
    """The global batch stays, and weights make its mean: the norms are those of a job that keeps its size."""
    how = "--way", "hsdp", "--samples", "20000"
    with local_job(tmp_path / "job", SCRIPT, *how, "--sleep", "0.2", unit=UNIT) as job:
        train_at(job, 2)
        job.start("n1", 4)
        train_at(job, 6)
        job.wait_until("some steps", lambda: len(norms(job, 6)) > 20)
        at_six = norms(job, 6)
    last = min(step for step, *_ in at_six) + 20
    with local_job(tmp_path / "fixed", SCRIPT, *how, "--sleep", "0", unit=UNIT) as job:
        job.wait_until("as many steps", lambda: len(norms(job, 2)) > last)
        reference = norms(job, 2)
    # Six workers fill the last step of an epoch up with other samples than two. From there on all differs.
    compared = list(itertools.takewhile(reference.__contains__, sorted(at_six)))
    assert len(compared) > 10
    assert all(math.isclose(at_six[step], reference[step], rel_tol=1e-4) for step in compared)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("odd", ["dist.new_group() at in_units.py:", "[0, 3]", "--elastic-unit=2"]),
        rare("whole", ["fully_shard() at in_units.py:", "(workers // 2, 2)"]),
        rare("skewed", ["DataLoader at in_units.py:", "num_replicas=3", "--elastic-unit=2"]),
    ],
)
def test_what_no_unit_can_have_keeps_the_job_at_its_size_and_is_named(
    tmp_path: Path, way: str, words: list[str]
) -> None:
    """It trains on at that size."""
    with local_job(tmp_path / "job", SCRIPT, "--way", way, workers=4, unit=UNIT) as job:
        job.wait_until("steps", lambda: len(job.events("step")) > 40)
        (line,) = [each for each in job.output().splitlines() if "keeps its size" in each]
        assert [word for word in words if word not in line] == []
        assert {each["size"] for each in job.events("step")} == {4}
        job.stop()
        assert job.wait() == 0, job.output()
