"""The coordinator answers on, whatever its callers do and however they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horovod_elastic.sharing import introduction, status
from horovod_elastic.sharing.coordinator import Coordinator
from horovod_elastic.sharing.devices import PretendedDevice
from horovod_elastic.sharing.environment import Role
from horovod_elastic.sharing.introduction import Hello, Kind, Told
from horovod_elastic.sharing.pages import Page

GPU = "g0"
CALLER = """
import os, sys, time
from pathlib import Path
from horovod_elastic.sharing import introduction
from horovod_elastic.sharing.environment import Role
from horovod_elastic.sharing.introduction import Hello
from horovod_elastic.sharing.pages import Page
folder, role, then = sys.argv[1:]
connection = introduction.connect(Path(folder))
introduction.send(connection, Hello("g0", Role(role)).encoded(), Page.make("page").descriptor)
print(introduction.told_of(introduction.receive(connection)[0]).kind.value, flush=True)
exec(then)
time.sleep(600)
"""
"""A process that introduces itself, says how it was answered, and goes on with `then`."""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """A coordinator that runs in a thread."""
    made = Coordinator(tmp_path, [PretendedDevice(GPU, 8 << 30)])
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.end()
    thread.join()


@contextmanager
def caller(folder: Path, role: Role, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own. Its answer is the first line that it prints."""
    command = [sys.executable, "-c", CALLER, str(folder), role.value, then]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as started:
        yield started
        os.killpg(started.pid, signal.SIGKILL)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def introduced(folder: Path, role: Role) -> tuple[socket.socket, Told]:
    connection = introduction.connect(folder, timeout_s=30)
    introduction.send(connection, Hello(GPU, role).encoded(), Page.make("page").descriptor)
    return connection, introduction.told_of(introduction.receive(connection)[0])


def members(folder: Path) -> list[status.Member]:
    """Who has the GPU or waits for it, by the status."""
    gpu = status.read(folder).gpu(GPU)
    assert gpu is not None
    return [each for each in (gpu.guarantee, gpu.opportunistic, *gpu.waiting) if each is not None]


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.processes
@pytest.mark.parametrize("role", Role)
def test_a_job_that_is_killed_is_forgotten_though_its_fork_keeps_the_connection(
    coordinator: Coordinator, tmp_path: Path, role: Role
) -> None:
    with caller(tmp_path, role, "print(os.fork(), flush=True)") as job:
        assert said(job) == Kind.ACCEPTED.value
        assert said(job)
        wait(lambda: members(tmp_path))
        job.kill()
        job.wait()
        wait(lambda: not members(tmp_path))
        connection, told = introduced(tmp_path, role)
        assert told.kind is Kind.ACCEPTED
        connection.close()


def test_a_process_that_introduces_itself_twice_and_hangs_up_leaves_the_coordinator_to_others(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    first, second = introduced(tmp_path, Role.GUARANTEE)[0], introduced(tmp_path, Role.GUARANTEE)[0]
    assert first.recv(1) == b""  # that introduction is void
    first.close()
    second.close()
    for _ in range(3):
        connection, told = introduced(tmp_path, Role.GUARANTEE)
        assert told.kind is Kind.ACCEPTED
        connection.close()
