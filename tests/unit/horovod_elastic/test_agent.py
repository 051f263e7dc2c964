"""Which GPUs a worker sees, and which signals reach it."""

from __future__ import annotations

import argparse
import signal
import subprocess

import pytest

from horovod_elastic.agent import Agent, devices_seen


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
    agent._options = argparse.Namespace(pass_signals=passes)
    worker = subprocess.Popen(["sleep", "60"])
    agent._workers = {"w1": worker}
    agent._pass_on(signal.SIGUSR1, None)
    if not passes:
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.3)
        worker.kill()
    assert worker.wait(timeout=10) == -(signal.SIGUSR1 if passes else signal.SIGKILL)
