"""Jobs that lose their leader, stand still, wait for slow newcomers and are told things: training goes on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from elastic_jobs import TRACE, Event, Job, Submit, agent_called, take_nodes, wait_for_start, went_on

from flexo_lab import Lab

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
"""Nothing may hang for longer."""


def leaders(job: Job) -> list[str]:
    """The agents that have led it, one after the other."""
    return [str(event["agent"]) for event in job.trace("leader")]


def launcher(job: Job) -> psutil.Process:
    """Its `flexo run`."""
    found = []
    for pid in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.cmdline()[2:3] == ["run"] and process.name() != "srun":
                found.append(process)
    (one,) = found
    return one


class Listening(NamedTuple):
    """A socket at which a process waits for callers. Others may use its port later, but not its number."""

    address: str
    number: str
    """The kernel's name of it, as ``socket:[123]``."""


def listening(pids: Iterable[int]) -> set[Listening]:
    """What these processes listen at; but for Slurm's own srun."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):  # ended, or of another container
            process = psutil.Process(pid)
            if process.name() != "srun":
                found |= {
                    Listening(
                        each.laddr.ip.removeprefix("::ffff:"),
                        str(Path(f"/proc/{pid}/fd/{each.fd}").readlink()),
                    )
                    for each in process.net_connections("inet")
                    if each.status == psutil.CONN_LISTEN
                }
    return found


def check_total(done: list[Event]) -> None:
    """What was summed up is right only if all went on from exactly their last commit, whoever was lost."""
    assert {event["total"] for event in done} == {sum(range(done[0]["steps"]))}


def test_a_killed_leader_is_replaced_and_a_worker_that_stands_still_is_too(
    submit: Submit, alone: Lab
) -> None:
    """And all that listens does so on the job's own address, and is closed in the end."""
    options = ("-N", "2", "-n", "2", "--gpus-per-task=1")
    job = submit("counting.py", options=options, elastic="2-3", environment=(TRACE,))
    job.wait_for_size(3)
    open_ = listening(job.processes())
    assert open_
    assert {each.address for each in open_} == {"127.0.0.1"}  # as Slurm's NodeAddr says of a lab's nodes

    (first,) = leaders(job)
    killed, step = time.time(), job.steps_committed()[-1]
    agent_called(job, first).kill()
    job.wait_until("another leader", lambda: len(leaders(job)) == 2, PATIENCE_S)
    job.wait_until("training under it", lambda: job.steps_committed()[-1] > step + 20, PATIENCE_S)
    assert not went_on(job, killed), "workers have trained on, also those of the agent that was killed"
    assert "before is gone" in job.output()

    killed = time.time()
    agent_called(job, leaders(job)[-1]).parent().kill()  # its supervisor, and so all of its node
    job.wait_until("training without that node", lambda: went_on(job, killed), PATIENCE_S)
    job.wait_for_size(3, after=killed)
    assert len(leaders(job)) == 3

    victim = max(job.events("enter"), key=lambda event: (event["time"], event["rank"]))["pid"]
    stopped = time.time()
    os.kill(victim, signal.SIGSTOP)
    job.wait_until("an end of what stands still", lambda: victim not in job.workers(), PATIENCE_S)
    job.wait_for_size(3, after=stopped)
    open_ |= listening(job.processes())
    job.stop()
    check_total(job.check_finished())
    job.check_steps(lost=4)
    assert not open_ & listening(psutil.pids())


def test_a_satellite_that_leads_hands_over_before_slurm_takes_its_node(submit: Submit, alone: Lab) -> None:
    """It leads because the base, a single node, was lost for a while: below the minimum, and up again."""
    job = submit("counting.py", elastic="1-3", environment=(TRACE,))
    job.wait_for_size(3)
    base = leaders(job)[0]
    killed = time.time()
    starter = launcher(job)
    starter.suspend()  # it would start the base's agent again, which then would lead
    agent_called(job, base).parent().kill()  # its supervisor, and so all of the base
    job.wait_until("training without the base", lambda: went_on(job, killed), PATIENCE_S)
    assert len(leaders(job)) == 2
    assert leaders(job)[1] != base
    starter.resume()
    job.wait_for_size(3, after=killed)

    asked = time.time()
    rigid = take_nodes(alone, 3, 3, 2)
    job.wait_for_size(1, after=asked)
    wait_for_start(job, rigid)
    assert leaders(job)[2:] == [base]
    assert f"{base} goes on" in job.output()
    job.stop()
    check_total(job.check_finished())
    job.check_steps(lost=2)
    steps = [event["step"] for event in job.events("commit") if event["rank"] == 0 and event["time"] > asked]
    assert steps == list(range(steps[0], steps[-1] + 1)), f"a planned hand-over loses nothing\n{job.output()}"


@pytest.mark.thorough
def test_nobody_waits_for_newcomers_that_are_slower_than_horovods_patience(
    submit: Submit, alone: Lab
) -> None:
    patience = 10
    slow = ("--newcomers-sleep", str(3 * patience))
    job = submit(
        "counting.py", *slow, elastic="1-3", environment=(f"HOROVOD_GLOO_TIMEOUT_SECONDS={patience}",)
    )
    job.wait_for_size(3)
    committed = [event for event in job.events("commit") if event["rank"] == 0]
    alone_at = [event["time"] for event in committed if event["size"] == 1]
    assert alone_at[-1] - alone_at[0] > 2 * patience
    pauses = [later - earlier for earlier, later in itertools.pairwise(alone_at)]
    assert max(pauses) < patience
    job.stop()
    check_total(job.check_finished())
    job.check_steps()


@pytest.mark.thorough
def test_a_running_job_is_measured_saved_and_changed_while_it_changes(submit: Submit, alone: Lab) -> None:
    job = submit("counting.py", elastic="1-3")
    job.wait_for_size(3)
    base, began = str(job.job_id), time.time()
    asked = ["flexo", "profile", base, "--min", "1", "--max", "3", "--batches", "5", "--wait", "--json"]
    measured = json.loads(alone.run(asked).stdout)
    assert [point["workers"] for point in measured["points"]] == [1, 2, 3], measured
    job.wait_for_size(3, after=began)  # it may have come back before flexo said so
    assert len(job.workers()) == 3  # those who stepped aside have come back, and are the same

    path, own = job.folder / "state.pt", job.folder / "own.txt"
    for _ in range(2):
        alone.run(["flexo", "checkpoint", base, str(path), "--wait"])
        check_checkpoint(path)
    own.write_text("the user's own file")
    refused = alone.run(["flexo", "checkpoint", base, str(own), "--wait"], check=False)
    assert refused.returncode != 0
    assert str(own) in refused.stderr
    assert own.read_text() == "the user's own file"

    changed = time.time()
    for workers in ("1", "3", "2"):
        alone.run(["flexo", "scale", base, workers])
    job.wait_for_size(2, after=changed)
    alone.run(["flexo", "scale", base, "auto"])
    job.wait_for_size(3, after=changed)
    job.stop()
    check_total(job.check_finished())
    job.check_steps()


def check_checkpoint(path: Path) -> None:
    """It can be read without running anybody's code, and is of one moment."""
    text = str(torch.load(path, weights_only=True))
    assert "'step'" in text
    assert "'total'" in text
