"""Which GPUs a worker sees, which signals reach it, and what becomes of an agent that hangs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic.agent.agent import Agent, LocalWorker, Post, devices_seen


@pytest.mark.parametrize(
    ("gpus", "slot", "local_rank", "seen"),
    [
        (1, 0, 0, "0,1,2"),
        (1, 1, 1, "0,1,2"),
        (1, 0, 1, "1,0,2"),
        (1, 2, 0, "2,1,0"),
        (1, 3, 0, "0,1,2"),
        (2, 0, 0, "0,1"),
        (2, 1, 0, "2"),
    ],
)
def test_the_gpu_of_its_slot_is_where_the_script_looks(
    gpus: int, slot: int, local_rank: int, seen: str
) -> None:
    found = devices_seen(["0", "1", "2"], gpus, slot, local_rank)
    assert ",".join(found) == seen
    if gpus == 1 and slot < 3:
        assert found[local_rank] == str(slot)


@pytest.mark.parametrize("passes", [True, False])
def test_signals_are_passed_on_where_slurm_reaches_the_agent_alone(passes: bool) -> None:
    agent = object.__new__(Agent)
    agent._post = Post(1, True, "", False, passes, ())
    worker = subprocess.Popen(["sleep", "60"])
    agent._workers = {"w1": LocalWorker(pb.StartWorker(worker_id="w1"), worker)}
    agent._pass_on(signal.SIGUSR1, None)
    if not passes:
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.3)
        worker.kill()
    assert worker.wait(timeout=10) == -(signal.SIGUSR1 if passes else signal.SIGKILL)


GUARDED = """
import sys, time
from horovod_elastic.agent.guardian import Guardian
guardian = Guardian(0.5)
for _ in range(12 if sys.argv[1] == "works" else 1):
    time.sleep(0.1)
    guardian.tick()
if sys.argv[1] == "hangs":
    time.sleep(60)
guardian.close()
time.sleep(1)
"""


@pytest.mark.parametrize(("what", "exit_code"), [("works", 0), ("closes early", 0), ("hangs", -9)])
def test_an_agent_that_hangs_is_killed_and_one_that_works_is_not(what: str, exit_code: int) -> None:
    agent = subprocess.run([sys.executable, "-c", GUARDED, what], timeout=30, check=False)
    assert agent.returncode == exit_code
