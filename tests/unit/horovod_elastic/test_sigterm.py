"""SIGTERM in training processes: real processes, started as the agent starts them, and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horovod_elastic.agent.worker_environment import INJECT

pytestmark = pytest.mark.processes

BOUND_S = 30.0
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(script, satellite=True) -> a process that has said "ready"."""
    started: list[subprocess.Popen[str]] = []

    def start_one(script: str, satellite: bool = True) -> subprocess.Popen[str]:
        (tmp_path / "script.py").write_text(script)
        environment = {
            **os.environ,
            "PYTHONPATH": str(INJECT),
            "FLEXO_AGENT": "l:1",
            "FLEXO_WORKER_ID": "w1",
        }
        if satellite:
            environment["FLEXO_SATELLITE"] = "1"
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def say_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
LOADER = """
import multiprocessing, os, signal, sys, time
def load(word):
    print(word, flush=True)
    time.sleep(60)
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1] if len(sys.argv) > 1 else METHOD)
    loader = multiprocessing.Process(target=load, args=("ready",))
    loader.start()
    time.sleep(1.0)
    os.kill(loader.pid, 0)
    while not os.path.exists(STOP): time.sleep(0.05)
    print("alive" if loader.is_alive() else f"dead {loader.exitcode}", flush=True)
    loader.terminate()
    loader.join(20)
    print(f"ended {loader.exitcode}", flush=True)
"""
HELPERS = """
import subprocess, sys
print("ready", flush=True)
for command in (["sleep", "60"], [sys.executable, "-c", "import time; time.sleep(60)"]):
    helper = subprocess.Popen(command)
    try:
        helper.wait(1.0)
    except subprocess.TimeoutExpired:
        helper.terminate()
    print(helper.wait(20), flush=True)
"""
FORKER = """
import os, signal, time
child = os.fork()
if child == 0:
    time.sleep(60)
print("ready", flush=True)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_on_a_satellite_a_training_process_outlives_it(start: Start) -> None:
    process = start(SLEEPER)
    process.terminate()
    time.sleep(0.3)
    assert process.poll() is None


def test_on_the_base_it_is_what_it_always_is(start: Start) -> None:
    process = start(SLEEPER, satellite=False)
    process.terminate()
    assert process.wait(BOUND_S) == -signal.SIGTERM


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_outlive_it_unless_their_own_process_sends_it(
    start: Start, tmp_path: Path, method: str
) -> None:
    stop = tmp_path / "stop"
    process = start(LOADER.replace("METHOD", repr(method)).replace("STOP", repr(str(stop))))
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGTERM)  # as Slurm signals a step: every process
    time.sleep(0.3)
    stop.touch()
    assert say_from(process) == "alive\n"
    assert say_from(process) == f"ended {-signal.SIGTERM}\n"


@pytest.mark.thorough
def test_programs_that_a_script_starts_can_be_terminated(start: Start) -> None:
    process = start(HELPERS)
    assert [say_from(process), say_from(process)] == [f"{-signal.SIGTERM}\n"] * 2


def test_a_process_that_a_script_forks_can_be_terminated(start: Start) -> None:
    assert say_from(start(FORKER)) == f"{-signal.SIGTERM}\n"


def test_a_python_without_horovod_elastic_works_until_it_imports_horovod(tmp_path: Path) -> None:
    done = subprocess.run(
        [f"{sys.base_prefix}/bin/python3", "-c", "print('fine')\nimport horovod"],
        env={"PYTHONPATH": str(INJECT), "FLEXO_AGENT": "l:1", "FLEXO_WORKER_ID": "w1"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        cwd=tmp_path,
    )
    assert done.stdout == "fine\n"
    assert done.returncode == 1
    assert "cannot import horovod_elastic" in done.stderr


def test_a_sitecustomize_that_is_hidden_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the site itself')")
    environment = {**os.environ, "PYTHONPATH": f"{INJECT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", ""], env=environment, capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.stdout == "the site itself\n"
