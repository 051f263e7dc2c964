"""The Prolog that ends second jobs: what it calls, how long it waits, and what it says. It never fails."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
PROLOG = Path(__file__).resolve().parents[3] / "slurm_plugin" / "prolog_sharing.example"
AT_MOST_S = 2.0
"""A second, and the time that a busy machine takes to start a few processes."""

Prolog = Callable[..., tuple[str, float]]


@pytest.fixture
def prolog(tmp_path: Path) -> Iterator[Prolog]:
    """prolog(gpus, *, flexo) -> its words and its seconds; a coordinator's socket is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "coordinator.sock"))

        def run(gpus: str | None, flexo: str | Path = tmp_path / "flexo") -> tuple[str, float]:
            given = {"FLEXO": str(flexo), "FLEXO_SHARING_FOLDER": str(tmp_path), "SLURM_JOB_ID": "17"}
            began = time.monotonic()
            done = subprocess.run(
                [PROLOG],
                env=given | ({"SLURM_JOB_GPUS": gpus} if gpus else {}),
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0  # another code drains the node
            assert done.stdout == ""
            return done.stderr, time.monotonic() - began

        yield run


def command(folder: Path, *lines: str) -> None:
    """A `flexo` that notes its arguments, and then does as these lines say."""
    file = folder / "flexo"
    file.write_text("\n".join(("#!/bin/sh", f'echo "$*" >> {folder}/called', *lines)) + "\n")
    file.chmod(0o755)


def called(folder: Path) -> set[str]:
    """The GPUs for which the command was called."""
    file = folder / "called"
    lines = file.read_text().splitlines() if file.exists() else []
    expected = f"share evict --gpu gpu%s --folder {folder} --within 0.8"
    gpus = {line.split()[3].removeprefix("gpu") for line in lines}
    assert sorted(lines) == sorted(expected % gpu for gpu in gpus)
    return gpus


def test_it_asks_for_each_gpu_of_the_job_and_says_nothing(prolog: Prolog, tmp_path: Path) -> None:
    command(tmp_path, "exit 0")
    assert prolog("0,3")[0] == ""
    assert called(tmp_path) == {"0", "3"}


def test_it_waits_a_second_for_all_gpus_together_if_nothing_answers(prolog: Prolog, tmp_path: Path) -> None:
    command(tmp_path, "exec sleep 60")
    told, took_s = prolog("0,1,2,3,4,5,6,7")
    assert 0.9 < took_s < AT_MOST_S
    assert called(tmp_path) == set("01234567")
    assert told.count("no answer within 1 s") == 8


def test_what_the_command_says_about_a_failure_is_told_with_job_and_gpu(
    prolog: Prolog, tmp_path: Path
) -> None:
    command(tmp_path, "echo the coordinator refuses >&2", "exit 1")
    told, _ = prolog("2")
    assert all(word in told for word in ("flexo-prolog", "job 17", "GPU 2", "the coordinator refuses"))


def test_a_command_that_is_not_there_is_told_with_the_remedy(prolog: Prolog) -> None:
    told, _ = prolog("0", flexo="/nowhere/flexo")
    assert all(word in told for word in ("job 17", "/nowhere/flexo", "Set FLEXO"))


def test_a_job_without_gpus_calls_nothing(prolog: Prolog, tmp_path: Path) -> None:
    command(tmp_path, "exit 1")
    assert prolog(None)[0] == ""
    assert called(tmp_path) == set()


def test_a_node_without_a_coordinator_calls_nothing(prolog: Prolog, tmp_path: Path) -> None:
    (tmp_path / "coordinator.sock").unlink()
    command(tmp_path, "exit 1")
    assert prolog("0")[0] == ""
    assert called(tmp_path) == set()


def test_an_administrator_can_run_it_as_it_is() -> None:
    assert os.access(PROLOG, os.X_OK)
    assert subprocess.run(["sh", "-n", PROLOG]).returncode == 0
