"""Who belongs to a lab, told from real processes, and how they are ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from says import says

from flexo_lab.errors import LabFailed
from flexo_lab.flexod import start_own
from flexo_lab.processes import Account, belonging_to, end, start, wait_until

pytestmark = pytest.mark.processes

Start = list[subprocess.Popen[bytes]]


@pytest.fixture
def started() -> Iterator[Start]:
    processes: Start = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def sleeper(
    started: Start, *, environment: dict[str, str] | None = None, cwd: Path | str = "/", word: str = ""
) -> int:
    """A process that sleeps; its pid. `word` is one more argument on its command line."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", word]
    process = subprocess.Popen(
        command, env=environment or {}, cwd=cwd, start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    started.append(process)
    return process.pid


def pids(directory: Path) -> set[int]:
    return {process.pid for process in belonging_to(directory)}


def test_a_process_belongs_to_the_lab_that_its_environment_names(tmp_path: Path, started: Start) -> None:
    lab, other = tmp_path / "a", tmp_path / "ab"
    mine = sleeper(started, environment={"SLURM_CONF": f"{lab}/slurm.conf"})
    foreign = sleeper(started, environment={"SLURM_CONF": f"{other}/slurm.conf"})
    assert pids(lab) == {mine}
    assert pids(other) == {foreign}


@pytest.mark.parametrize("form", ["{}/log/slurmctld.log", "--socket={}/munge/s", "{}"])
def test_a_process_belongs_to_the_lab_that_its_command_line_names(
    tmp_path: Path, started: Start, form: str
) -> None:
    mine = sleeper(started, word=form.format(tmp_path / "a"))
    assert pids(tmp_path / "a") == {mine}


def test_a_script_that_mentions_the_lab_among_other_things_does_not_belong_to_it(
    tmp_path: Path, started: Start
) -> None:
    sleeper(started, word=f"ls {tmp_path}/a; sleep 5")
    sleeper(started, word=f"{tmp_path}/ab/slurm.conf")
    assert pids(tmp_path / "a") == set()


def test_a_job_that_threw_its_environment_away_is_known_by_where_it_works(
    tmp_path: Path, started: Start
) -> None:
    mine = sleeper(started, cwd=tmp_path)
    assert pids(tmp_path) == {mine}


def test_descendants_belong_to_it_whatever_they_say_of_themselves(tmp_path: Path, started: Start) -> None:
    command = ["/bin/sh", "-c", "env -i sleep 60 & echo $!; wait"]
    parent = subprocess.Popen(
        command,
        env={"SLURM_CONF": f"{tmp_path}/slurm.conf", "PATH": os.environ["PATH"]},
        cwd="/",
        stdout=subprocess.PIPE,
    )
    started.append(parent)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    found = belonging_to(tmp_path)
    assert {process.pid for process in found} == {parent.pid, child}
    end(found, patience_s=5)
    assert pids(tmp_path) == set()


def test_who_asks_is_spared_and_so_are_its_ancestors(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from flexo_lab.processes import belonging_to;"
        "print(len(belonging_to(Path(sys.argv[1]))))"
    )
    environment = {**os.environ, "SLURM_CONF": f"{tmp_path}/slurm.conf"}
    command = ["/bin/sh", "-c", f'"{sys.executable}" -c "{script}" "{tmp_path}"; true']
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_a_process_that_ignores_sigterm_is_killed_after_the_patience(tmp_path: Path, started: Start) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    since = time.monotonic()
    end(belonging_to(tmp_path), patience_s=0.3)
    assert time.monotonic() - since >= 0.3
    assert pids(tmp_path) == set()


def test_a_daemon_that_ends_instead_of_listening_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(["/bin/sh", "-c", "echo no such key; exit 3"], log, {"PATH": os.environ["PATH"]})
    with pytest.raises(LabFailed) as failure:
        wait_until(lambda: False, "it to listen", 10, log, process)
    assert says(str(failure.value), "status 3", "no such key")


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program as another account: needs root")
def test_a_daemon_of_the_lab_starts_with_a_python_that_only_root_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyenv, conda and uv put Pythons into /root; `flexo lab up` ended with a traceback there."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    python = closed / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    log = tmp_path / "log"
    started = start_own([str(python), "-c", "print('it runs')"], Account.named("nobody"), log, os.environ)
    assert started.wait(timeout=30) == 0
    assert "it runs" in log.read_text()
