"""The coordinator answers on, whatever its callers do and however they end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from horovod_elastic.sharing import coordinator as service
from horovod_elastic.sharing import introduction, shared_gpu, status
from horovod_elastic.sharing.coordinator import Coordinator
from horovod_elastic.sharing.devices import PretendedDevice
from horovod_elastic.sharing.environment import Role
from horovod_elastic.sharing.introduction import Eviction, Hello, Kind, Told
from horovod_elastic.sharing.law import Rules
from horovod_elastic.sharing.pages import GatePage, GateState, GuaranteePage, OpportunisticPage, Page

GPU = "g0"
CALLER = """
import os, sys, time
from pathlib import Path
from horovod_elastic.sharing import introduction
from horovod_elastic.sharing.environment import Role
from horovod_elastic.sharing.introduction import Hello
from horovod_elastic.sharing.pages import Page
folder, role, then = sys.argv[1:]
page = Page.make("page")
connection = introduction.connect(Path(folder))
introduction.send(connection, Hello("g0", Role(role)).encoded(), page.descriptor)
answer, pages = introduction.receive(connection)
print(introduction.told_of(answer).kind.value, flush=True)
exec(then)
time.sleep(600)
"""
"""A process that introduces itself, says how it was answered, and goes on with `then`."""
LEAVE = """
from horovod_elastic.sharing.pages import GatePage, GateState, Page
connection.settimeout(None)
while not pages:
    pages = introduction.receive(connection)[1]
gate = GatePage(Page.of(pages[0]))
while gate.state is not GateState.EVICTED:
    time.sleep(0.02)
os._exit(0)
"""
"""Ends when its gate page says so, as a supervisor has it."""


@contextmanager
def served(folder: Path, rules: Rules | None = None) -> Iterator[Coordinator]:
    """A coordinator that runs in a thread."""
    made = Coordinator(folder, [PretendedDevice(GPU, 8 << 30)], rules)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with served(tmp_path) as made:
        yield made


@contextmanager
def caller(folder: Path, role: Role, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own. Its answer is the first line that it prints."""
    command = [sys.executable, "-c", CALLER, str(folder), role.value, then]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as started:
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def introduced(folder: Path, role: Role, page: Page | None = None) -> tuple[socket.socket, Told]:
    connection = introduction.connect(folder, timeout_s=30)
    introduction.send(connection, Hello(GPU, role).encoded(), (page or Page.make("page")).descriptor)
    return connection, introduction.told_of(introduction.receive(connection)[0])


def is_refused(folder: Path) -> bool:
    try:
        connection, told = introduced(folder, Role.GUARANTEE)
    except ConnectionError:  # the coordinator hung up before it read the introduction
        return True
    connection.close()
    return told.kind is Kind.REFUSED


def members(folder: Path) -> list[status.Member]:
    """Who has the GPU or waits for it, by the status."""
    gpu = status.read(folder).gpu(GPU)
    assert gpu is not None
    return [each for each in (gpu.guarantee, gpu.opportunistic, *gpu.waiting) if each is not None]


def gate_of(folder: Path) -> str:
    gpu = status.read(folder).gpu(GPU)
    assert gpu is not None
    return gpu.gate


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


@pytest.mark.processes
@pytest.mark.usefixtures("coordinator")
def test_processes_that_live_on_without_their_connection_count_among_a_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_CALLERS", 2)
    hang_up = "connection.close()"
    with (
        caller(tmp_path, Role.GUARANTEE, hang_up) as first,
        caller(tmp_path, Role.GUARANTEE, hang_up) as other,
    ):
        assert said(first) == said(other) == Kind.ACCEPTED.value
        assert is_refused(tmp_path)
    wait(lambda: not is_refused(tmp_path))


@pytest.mark.usefixtures("coordinator")
@pytest.mark.parametrize("role", Role)
def test_a_coordinator_without_descriptors_for_a_page_hangs_up_and_serves_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    def make(name: str) -> Page:
        raise OSError(errno.EMFILE, "Too many open files")

    page = Page.make("page")
    with monkeypatch.context() as full:
        full.setattr(Page, "make", make)
        connection = introduction.connect(tmp_path, timeout_s=30)
        introduction.send(connection, Hello(GPU, role).encoded(), page.descriptor)
        assert introduction.receive(connection)[0] == b""
    assert introduced(tmp_path, role)[1].kind is Kind.ACCEPTED


@pytest.mark.usefixtures("coordinator")
def test_a_guarantee_job_that_cannot_be_watched_closes_the_gate_while_it_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", watch)
    connection, told = introduced(tmp_path, Role.GUARANTEE)
    assert told.kind is Kind.ACCEPTED
    wait(lambda: members(tmp_path))
    time.sleep(2 * service.STATUS_S)
    assert members(tmp_path)
    connection.close()
    wait(lambda: not members(tmp_path))


def evict(folder: Path) -> None:
    """What a site's prolog asks for. Returns when the jobs are gone."""
    with introduction.connect(folder, timeout_s=60) as connection:
        introduction.send(connection, Eviction(GPU).encoded())
        assert introduction.told_of(introduction.receive(connection)[0]).kind is Kind.ALONE


@pytest.mark.processes
@pytest.mark.usefixtures("coordinator")
def test_an_eviction_ends_the_jobs_that_wait_as_well(tmp_path: Path) -> None:
    with (
        caller(tmp_path, Role.OPPORTUNISTIC, LEAVE) as first,
        caller(tmp_path, Role.OPPORTUNISTIC, LEAVE) as second,
    ):
        assert {said(first), said(second)} == {Kind.ACCEPTED.value, Kind.QUEUED.value}
        evict(tmp_path)
        assert (first.wait(timeout=60), second.wait(timeout=60)) == (0, 0)


@pytest.mark.usefixtures("coordinator")
def test_a_process_that_began_before_an_eviction_is_evicted_when_it_comes(tmp_path: Path) -> None:
    evict(tmp_path)
    connection = introduction.connect(tmp_path, timeout_s=30)
    introduction.send(connection, Hello(GPU, Role.OPPORTUNISTIC).encoded(), Page.make("page").descriptor)
    answer, pages = introduction.receive(connection)
    assert introduction.told_of(answer).kind is Kind.ACCEPTED
    gate = GatePage(Page.of(pages[0]))
    wait(lambda: gate.state is GateState.EVICTED)
    connection.close()


@pytest.mark.processes
@pytest.mark.usefixtures("coordinator")
def test_a_process_that_begins_after_an_eviction_waits_until_it_can_be_no_former_satellite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SETTLE_S", 0.0)
    monkeypatch.setattr(shared_gpu, "GIVEN_S", 1e6)
    evict(tmp_path)
    with caller(tmp_path, Role.OPPORTUNISTIC) as job:
        assert said(job) == Kind.ACCEPTED.value
        wait(lambda: members(tmp_path))
        time.sleep(2 * service.STATUS_S)
        assert gate_of(tmp_path) == "closed"
        monkeypatch.setattr(shared_gpu, "GIVEN_S", 0.0)
        wait(lambda: gate_of(tmp_path) == "open")


@pytest.mark.processes
def test_a_job_that_keeps_memory_that_the_guarantee_job_needs_leaves_the_gpu(tmp_path: Path) -> None:
    holds = f"page.words[{OpportunisticPage.MEMORY}] = 6 << 30\n" + LEAVE
    page = Page.make("page")
    page.words[GuaranteePage.PEAK] = 2 << 30
    with served(tmp_path, Rules(over_s=0.5)), caller(tmp_path, Role.OPPORTUNISTIC, holds) as job:
        assert said(job) == Kind.ACCEPTED.value
        connection, told = introduced(tmp_path, Role.GUARANTEE, page)
        assert told.kind is Kind.ACCEPTED

        def ended() -> bool:
            page.beat()
            return job.poll() is not None

        wait(ended)
        assert job.wait() == 0
        connection.close()
