"""The example is an ordinary Horovod script: it runs alone, and under stock Horovod, fixed and elastic."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flexo_demos.elastic.measure import Course, EpochPlan, balance, course, read_logs
from flexo_demos.elastic.runs import RunResult

pytestmark = pytest.mark.training

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py"
BIN = Path(sys.executable).parent
ALONE = [sys.executable, "-m", "horovod_elastic.core.c10d"]
HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch", "--network-interfaces", "lo"]


def train(tmp_path: Path, launcher: list[str], epochs: int, *options: str) -> tuple[float, Course]:
    """Run it to its end; its accuracy and its course, after a look that nothing was lost or repeated."""
    logs = tmp_path / "logs"
    python = [] if launcher == ALONE else [sys.executable]
    script = [*python, str(SCRIPT), "--epochs", str(epochs), "--log-dir", str(logs), *options]
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run([*launcher, *script], capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    result = RunResult.read(logs)
    assert result is not None
    plan = EpochPlan(epochs, batch=48, train_samples=result.train_samples)
    found = balance(read_logs(logs), plan)
    assert found.batches_committed == found.batches_planned == 30 * epochs
    assert (found.batches_lost, found.batches_repeated, found.batches_half_logged) == (0, 0, 0)
    assert (found.samples_lost, found.samples_repeated) == (0, 0)
    went = course(read_logs(logs))
    assert went is not None
    return result.accuracy, went


def test_alone_it_learns_the_digits(tmp_path: Path) -> None:
    accuracy, went = train(tmp_path, ALONE, 20)
    assert accuracy > 0.96
    assert went.sizes == (1,)


@pytest.mark.native
def test_under_stock_horovodrun_two_workers_learn_what_one_does(tmp_path: Path) -> None:
    alone, _ = train(tmp_path / "alone", [], 10)
    together, went = train(tmp_path / "together", [*HOROVODRUN, "-np", "2"], 10)
    assert went.sizes == (2,)
    assert together == pytest.approx(alone, abs=0.006)  # two of 360 test digits


@pytest.mark.native
def test_batches_that_do_not_divide_evenly_are_shared_without_loss(tmp_path: Path) -> None:
    alone, _ = train(tmp_path / "alone", [], 6)
    together, went = train(tmp_path / "together", [*HOROVODRUN, "-np", "5"], 6)
    assert went.sizes == (5,)
    assert together == pytest.approx(alone, abs=0.006)


@pytest.mark.native
@pytest.mark.slow
def test_under_stock_elastic_horovod_it_grows_and_shrinks_without_losing_a_batch(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.write_text("1")
    hosts = tmp_path / "hosts.sh"
    hosts.write_text(f'#!/bin/sh\necho "localhost:$(cat {slots})"\n')
    hosts.chmod(0o755)

    def change_workers() -> None:
        for number, steps in (("2", 20), ("1", 120)):
            _wait_for_steps(tmp_path / "logs", steps)
            slots.write_text(number)

    threading.Thread(target=change_workers, daemon=True).start()
    elastic = ["-np", "1", "--min-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts)]
    accuracy, went = train(tmp_path, [*HOROVODRUN, *elastic], 10, "--step-seconds", "0.1")
    assert went.sizes == (1, 2, 1)
    assert accuracy > 0.94


def _wait_for_steps(logs: Path, steps: int) -> None:
    """Return when so many steps are committed, or after a while."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        went = course(read_logs(logs))
        if went is not None and went.steps_done >= steps:
            return
        time.sleep(0.5)
