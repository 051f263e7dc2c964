"""Opportunistic jobs, whose bases have no workers: they pause below their minimum and go on with others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from local_job import LocalJob, local_job, train_at  # noqa: E402

SCRIPT = HERE / "scripts" / "plain_ddp.py"
SAMPLES, EPOCHS = 1280, 4
HOW = "--samples", str(SAMPLES), "--epochs", str(EPOCHS), "--sleep", "0.05"
PAUSES = "training pauses"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """By step, a digest of the model, of a job of two workers to which nothing happens."""
    with local_job(tmp_path_factory.mktemp("undisturbed") / "job", SCRIPT, *HOW) as job:
        assert job.wait() == 0, job.output()
        return {each["taken"]: each["digest"] for each in job.events("step") if each["world"]}


def of_the_model_that_survives(job: LocalJob) -> dict[int, list[dict[str, Any]]]:
    """By step, what its workers have logged: the last time, if training went back behind it."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for each in job.events("step"):
        if each["world"]:
            known = steps.get(each["taken"], [])
            steps[each["taken"]] = [*known, each] if known and known[0]["world"] == each["world"] else [each]
    return steps


def check(job: LocalJob, undisturbed: dict[int, float]) -> None:
    """Each sample was used once an epoch, and the model is the same as without any pause."""
    steps = check_samples(job)
    assert {taken: {each["digest"] for each in its} for taken, its in steps.items()} == {
        taken: {digest} for taken, digest in undisturbed.items()
    }
    last = [each for each in job.events("epoch") if each["epoch"] == EPOCHS - 1]
    assert len({each["accuracy"] for each in last}) == 1
    assert (job.folder / "logs" / "model.pt").exists(), "one of the workers knows itself as rank 0"


def check_samples(job: LocalJob, killed: int = 0) -> dict[int, list[dict[str, Any]]]:
    """Each sample was used once an epoch, and all workers had the same model. Returns the steps.

    The worker whose pid is `killed` may have died between its last step and that step's line in its log.
    """
    steps = of_the_model_that_survives(job)
    assert sorted(steps) == list(range(1, len(steps) + 1))
    unlogged = unlogged_share(steps, killed)
    for epoch in range(EPOCHS):
        its = [each for step in steps.values() for each in step if each["epoch"] == epoch]
        used = Counter(number for each in its for number in each["numbers"])
        assert set(used.values()) == {1}, f"epoch {epoch}"
        assert set(used) <= set(range(SAMPLES)), f"epoch {epoch}"
        assert len(used) == SAMPLES - unlogged.get(epoch, 0), f"epoch {epoch}"
    assert all(len({each["digest"] for each in its}) == 1 for its in steps.values())
    return steps


def unlogged_share(steps: dict[int, list[dict[str, Any]]], killed: int) -> dict[int, int]:
    """By epoch, the samples of a step that `killed` took and did not log: it took it if its peer did."""
    last = next(
        (each for _, its in sorted(steps.items(), reverse=True) for each in its if each["pid"] == killed),
        None,
    )
    if last is None:
        return {}
    after = [each for each in steps.get(last["taken"] + 1, ()) if each["world"] == last["world"]]
    return {each["epoch"]: len(each["numbers"]) for each in after}


def wait_for_pause(job: LocalJob, number: int = 1) -> None:
    job.wait_until(f"pause {number}", lambda: job.output().count(PAUSES) >= number)


def wait_for_step(job: LocalJob, number: int) -> None:
    """Until all workers have taken so many. After the first few, training can pause."""

    def reached() -> bool:
        newest: dict[int, int] = {}
        for each in job.events("step"):
            if each["world"]:
                newest[each["pid"]] = max(newest.get(each["pid"], 0), each["taken"])
        return bool(newest) and min(newest.values()) >= number

    job.wait_until(f"step {number}", reached)


def kill(job: LocalJob, *nodes: str) -> None:
    """At once, with all their processes."""
    for node in nodes:
        os.killpg(job.supervisors[node].pid, signal.SIGKILL)


def kill_the_bases_agent(job: LocalJob) -> None:
    (agent,) = psutil.Process(job.supervisors["base"].pid).children()
    agent.kill()
    agent.wait()


def start(job: LocalJob, *nodes: str) -> None:
    for node in nodes:
        job.start(node, 1)


def test_a_ddp_script_pauses_and_goes_on_with_other_workers(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """Meanwhile the base's agent is killed. The next one finds the state."""
    with local_job(tmp_path / "job", SCRIPT, *HOW, minimum=2) as job:
        start(job, "n1")
        time.sleep(1.0)
        assert not job.events("step"), "one worker is too few"
        start(job, "n2")
        world = train_at(job, 2)
        job.send_away("n1")
        wait_for_pause(job)
        job.send_away("n2")
        job.wait_until("the satellites' end", lambda: job.supervisors["n2"].poll() is not None)
        kill_the_bases_agent(job)
        start(job, "n3", "n4")
        train_at(job, 2, after=world)
        assert job.wait() == 0, job.output()
        check(job, undisturbed)
        assert list(job.folder.glob("flexo-parked-*")) == [], "at the end, the base keeps nothing"


@pytest.mark.thorough
def test_a_ddp_script_goes_back_to_the_parked_state_when_all_its_workers_are_killed(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    with local_job(tmp_path / "job", SCRIPT, *HOW, minimum=2, FLEXO_PARK_INTERVAL_S="0.3") as job:
        start(job, "n1", "n2")
        world = train_at(job, 2)
        wait_for_step(job, 20)
        kill(job, "n1", "n2")
        start(job, "n3", "n4")
        train_at(job, 2, after=world)
        assert job.wait() == 0, job.output()
        check(job, undisturbed)
        assert job.output().count(PAUSES) == 1


@pytest.mark.thorough
def test_a_ddp_script_that_loses_a_worker_pauses_with_what_the_other_one_has(tmp_path: Path) -> None:
    """It goes back to its last commit and parks. Then the worker that died is started again."""
    with local_job(tmp_path / "job", SCRIPT, *HOW, minimum=2, FLEXO_PARK_INTERVAL_S="1000") as job:
        start(job, "n1", "n2")
        world = train_at(job, 2)
        wait_for_step(job, 10)
        (pid,) = {each["pid"] for each in job.events("step") if each["rank"] == 1 and each["world"]}
        os.kill(pid, signal.SIGKILL)
        wait_for_pause(job)
        train_at(job, 2, after=world)
        assert job.wait() == 0, job.output()
        assert "goes back" not in job.output()
        check_samples(job, killed=pid)


def test_a_script_that_cannot_pause_ends_when_a_worker_has_to_leave(tmp_path: Path) -> None:
    with local_job(tmp_path / "job", HERE / "scripts" / "keeps_its_size.py", minimum=2) as job:
        start(job, "n1", "n2")
        job.wait_until("the reason", lambda: "this job keeps its size: " in job.output())
        job.send_away("n1")
        assert job.wait() == 1, job.output()
        assert "training cannot pause, because dist.new_group() at keeps_its_size.py:16" in job.output()


@pytest.mark.thorough
def test_a_horovod_script_pauses_and_goes_back(tmp_path: Path) -> None:
    """First its workers leave in order, and then they are killed at once."""
    script, how = HERE / "scripts" / "elastic_data.py", ("--samples", "400", "--epochs", "2")
    with local_job(tmp_path / "job", script, *how, minimum=2, FLEXO_PARK_INTERVAL_S="0.3") as job:
        start(job, "n1", "n2")
        job.wait_until("steps", lambda: job.events("commit"))
        job.send_away("n1")
        wait_for_pause(job)
        entered = len(job.events("enter"))
        start(job, "n3")
        job.wait_until("other workers", lambda: len(job.events("enter")) > entered + 1)
        time.sleep(0.7)
        kill(job, "n2", "n3")
        start(job, "n4", "n5")
        assert job.wait() == 0, job.output()
        assert job.output().count(PAUSES) == 2
        check_elastic_data(job, samples=400, epochs=2)


def check_elastic_data(job: LocalJob, samples: int, epochs: int) -> None:
    """Each sample was used once an epoch. Of a step that was taken twice, the last time counts."""
    took = job.events("took")
    last = {each["step"]: each["generation"] for each in took}
    assert sorted(last) == list(range(1, len(last) + 1))
    for epoch in range(epochs):
        its = [each for each in took if each["epoch"] == epoch and each["generation"] == last[each["step"]]]
        assert Counter(number for each in its for number in each["samples"]) == Counter(range(samples))
