"""A base asks Slurm to requeue it when it is preempted for that; a satellite learns that it has to go."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from says import says

from horovod_elastic.platforms.slurm.preemption import requeue_if_preempted, was_told_to_go

pytestmark = pytest.mark.processes

JOB = (
    "JobId=7 JobName=train UserId=ada(1000) JobState={state} Requeue={requeue} Restarts=0 BatchFlag=1 "
    "PreemptEligibleTime=2026-11-22T07:00:00 PreemptTime={preempted} Partition=borrowed NodeList=i1"
)
PREEMPTED = {"state": "RUNNING", "requeue": "1", "preempted": "TIME"}
SCONTROL = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in
  *"show job 7"*) sed "s/TIME/$(date -d 2026-11-22T07:30:00 "+$SLURM_TIME_FORMAT")/" {folder}/job ;;
  *"show partition borrowed"*) echo "PartitionName=borrowed PreemptMode={mode} Nodes=i1" ;;
  "requeue Incomplete 7") exit {answer} ;;
  *) exit 9 ;;
esac
"""


@pytest.fixture(autouse=True)
def _sigterm_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def slurm(folder: Path, job: dict[str, str], mode: str = "REQUEUE", answer: int = 0) -> dict[str, str]:
    """An environment in which scontrol knows this job."""
    (folder / "job").write_text(JOB.format(**job) + "\n")
    scontrol = folder / "scontrol"
    scontrol.write_text(SCONTROL.format(folder=folder, mode=mode, answer=answer))
    scontrol.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SLURM_TIME_FORMAT": "%a %d %b"}  # as the user likes it


def was_requeued(folder: Path) -> bool:
    return "requeue Incomplete 7" in (folder / "asked").read_text().splitlines()


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setenv("PATH", environment["PATH"])  # subprocess looks commands up in its own


def test_a_preempted_base_is_requeued_and_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = slurm(tmp_path, PREEMPTED)
    use(monkeypatch, environment)

    def end_as_slurm_does() -> None:
        while not (tmp_path / "asked").exists() or not was_requeued(tmp_path):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end_as_slurm_does)
    thread.start()
    assert requeue_if_preempted("7", environment)
    thread.join()


@pytest.mark.parametrize(
    ("change", "mode"),
    [
        ({"preempted": "None"}, "REQUEUE"),
        ({"state": "CANCELLED"}, "REQUEUE"),
        ({"state": "TIMEOUT"}, "REQUEUE"),
        ({"requeue": "0"}, "REQUEUE"),
        ({}, "CANCEL"),
    ],
)
def test_a_base_that_ends_otherwise_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], mode: str
) -> None:
    environment = slurm(tmp_path, PREEMPTED | change, mode)
    use(monkeypatch, environment)
    assert not requeue_if_preempted("7", environment)
    assert not was_requeued(tmp_path)


def test_a_refusal_is_told_to_the_user_and_the_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = slurm(tmp_path, PREEMPTED, answer=1)
    use(monkeypatch, environment)
    before = signal.getsignal(signal.SIGTERM)
    assert not requeue_if_preempted("7", environment)
    assert says(capsys.readouterr().err, "not asked to requeue")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_satellite_that_was_told_to_go_before_it_could_hear_learns_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, environment := slurm(tmp_path, PREEMPTED | {"requeue": "0"}, "CANCEL"))
    assert was_told_to_go("7", environment)
    use(monkeypatch, environment := slurm(tmp_path, PREEMPTED | {"preempted": "None"}))
    assert not was_told_to_go("7", environment)
    assert not was_told_to_go("8", environment), "Slurm says nothing of it"
