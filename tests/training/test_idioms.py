"""Ways to train that real scripts have, resized and killed at random: workers agree, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from local_job import LocalJob, local_job

SCRIPTS = Path(__file__).resolve().parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

import idioms  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = SCRIPTS / "idiomatic.py"


def idiomatic_job(
    folder: Path, names: Sequence[str], *options: str
) -> contextlib.AbstractContextManager[LocalJob]:
    return local_job(folder, SCRIPT, "--idioms", ",".join(names), *options, FLEXO_CHECK_REPLICAS="3")


def disturb(job: LocalJob, seed: int, *, stop: bool = True) -> None:
    """Two satellites come, a worker is killed, a satellite goes: each at some boundary."""
    chance = random.Random(seed)
    job.wait_for_size(2)
    job.start("first", 1)
    job.start("second", 1)
    pids = job.wait_for_size(4)
    time.sleep(chance.uniform(0.1, 0.6))
    now = time.time()
    os.kill(pids[chance.randrange(4)], signal.SIGKILL)
    job.wait_for_size(4, after=now)
    time.sleep(chance.uniform(0.1, 0.6))
    now = time.time()
    job.send_away("first")
    job.wait_for_size(3, after=now)
    time.sleep(chance.uniform(0.1, 0.6))
    if stop:
        job.stop()
        assert job.wait() == 0, job.output()[-6000:]
        assert "replicas differ" not in job.output()


def check(job: LocalJob, names: Sequence[str], *, until: int = 10**9) -> None:
    """As `check_facts`, and all who trained at last got to the end."""
    check_facts(job, names, until=until)
    assert len(job.events("done")) == job.events("enter")[-1]["size"]
    assert "Traceback" not in job.output()


def check_facts(job: LocalJob, names: Sequence[str], *, until: int, tolerance: float = 2e-3) -> None:
    """All workers of a generation agree after every step, and have what undisturbed training has."""
    facts = [event for event in job.events("facts", suffix="facts") if event["batch"] < until]
    first: dict[tuple[str, int], dict[str, Any]] = {}
    for event in facts:
        other = first.setdefault((event["world"], event["batch"]), event)
        for name in names:
            ranks = event["rank"], other["rank"]
            assert event["facts"][name] == other["facts"][name], (event["batch"], name, ranks)
    last = {event["batch"]: event for event in facts}
    assert sorted(last) == list(range(1, len(last) + 1))
    for batch, expected in enumerate(idioms.trained(names, len(last)), 1):
        for name in names:
            found = last[batch]["facts"][name]
            assert found == pytest.approx(expected[name], rel=tolerance, abs=tolerance), (batch, name)


EVERYTHING = [name for name in idioms.IDIOMS if name not in ("accumulation", "groups")]


def test_commits_within_gradient_accumulation(tmp_path: Path) -> None:
    names = ["accumulation", "groups"]
    with idiomatic_job(tmp_path, names) as job:
        disturb(job, seed=1)
        check(job, names)


@pytest.mark.thorough
def test_schedulers_scalers_averages_and_clipping(tmp_path: Path) -> None:
    """Schedulers inside and outside of the state."""
    with idiomatic_job(tmp_path, EVERYTHING, "--commit", "every fifth") as job:
        disturb(job, seed=2)
        check(job, EVERYTHING)


@pytest.mark.thorough
def test_ranks_that_commit_at_different_batches_and_a_replica_that_differs(tmp_path: Path) -> None:
    """They check for changes after all batches, as Horovod's documentation has it."""
    names = ["adam", "cosine"]
    with idiomatic_job(tmp_path, names, "--commit", "by rank", "--spoil", "spoil") as job:
        disturb(job, seed=3, stop=False)
        assert "replicas differ" not in job.output()
        (job.folder / "logs" / "spoil").touch()
        job.wait_until("the difference to be told of", lambda: "replicas differ" in job.output())
        (line,) = [line for line in job.output().splitlines() if "replicas differ" in line]
        assert "adam_model.adam.weight" in line or "adam_model.weight" in line
        assert "rank 2 " in line
        assert "ranks 0, 1" in line
        spoiled = min(event["batch"] for event in job.events("spoiled"))
        job.stop()
        assert job.wait() == 0, job.output()[-6000:]
        check(job, names, until=spoiled)


def plan_early_return(job: LocalJob) -> tuple[int, int]:
    """The mini-batch at which the last rank returns, and the others' last."""
    now = max(event["batch"] for event in job.events("step"))
    job.plan_early_return(now + 50, now + 100)
    return now + 50, now + 100


def test_a_rank_that_returns_early(tmp_path: Path) -> None:
    """It joins (hvd.join). The others train to the end, in the same generation."""
    names = ["adam", "cosine"]
    with idiomatic_job(tmp_path, names, "--by-plan") as job:
        job.start("first", 1)
        job.wait_for_size(3)
        early, end = plan_early_return(job)
        assert job.wait() == 0, job.output()[-6000:]
        assert [event["batch"] for event in job.events("early")] == [early]
        check(job, names, until=early)
        assert {event["batch"] for event in job.events("done") if event["rank"] != 2} == {end}


@pytest.mark.thorough
def test_a_rank_returns_early_after_resizes_and_rank_0_is_killed_then(tmp_path: Path) -> None:
    """Those who are left go back to the last commit, and train to the end."""
    names = ["adam", "cosine"]
    with idiomatic_job(tmp_path, names, "--by-plan") as job:
        disturb(job, seed=4, stop=False)
        job.start("third", 1)
        job.wait_for_size(4)
        early, end = plan_early_return(job)
        job.wait_until("the early return", lambda: job.events("early"))
        members = {event["rank"]: event["pid"] for event in job.events("enter")}
        os.kill(members[0], signal.SIGKILL)
        assert job.wait() == 0, job.output()[-6000:]
        check_facts(job, names, until=early)
        assert end in {event["batch"] for event in job.events("done")}
