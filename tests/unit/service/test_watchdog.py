"""A flexod that stands still ends, and says where it stood; one that moves, rests or was stopped goes on.

Where systemd watches it, it gives signs of life for as long as it is not stuck; a socket stands for systemd.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from says import says

from flexo.service.watchdog import Watchdog

WITHIN_S = 60.0
STORY = """
import asyncio
import ctypes
import resource
import sys
import threading
import time

from prometheus_client import CollectorRegistry

from flexo.config import LogSettings
from flexo.metrics.counters import Counters
from flexo.service import logs, watchdog

logs.set_up(LogSettings())
watchdog.LOOK_S, watchdog.PATIENCE_S = 0.05, 0.4
counters = Counters(CollectorRegistry())
for_ever = threading.Event()


def controller_is_stuck_in_a_turn():
    counters.cycle_began()
    counters.command_ended("squeue", "done", 0.1)
    for_ever.wait()


def controller_goes_on():
    counters.cycle_began()
    for _ in range(15):  # a long turn, with much to do
        time.sleep(0.1)
        counters.command_ended("scancel", "done", 0.1)
    counters.cycle_ended("done", 1.5)
    time.sleep(1.5)  # and a long rest


def native_code_holds_pythons_lock():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counters.cycle_began()
    ctypes.PyDLL(None).sleep(1000)


async def main():
    turn = threading.Thread(target=globals()[sys.argv[1]], daemon=True)
    with watchdog.none_allowed(counters, asyncio.get_running_loop(), 0.1):
        turn.start()
        print("begun", flush=True)
        if sys.argv[2:] == ["and_the_loop_waits_for_it"]:
            turn.join()
        while turn.is_alive():
            await asyncio.sleep(0.05)
    print("went on to its end", flush=True)


asyncio.run(main())
"""


def begin(
    *words: str, stderr: int = subprocess.PIPE, watched_by: socket.socket | None = None
) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if watched_by is not None:
        environment |= {"NOTIFY_SOCKET": watched_by.getsockname(), "WATCHDOG_USEC": "10000000"}
    return subprocess.Popen(
        [sys.executable, "-c", STORY, *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
    )


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        yield listening


def signs_of_life(systemd: socket.socket, at_most: int, silence_s: float) -> int:
    """How many come until there has been none for `silence_s`, or `at_most`."""
    systemd.settimeout(silence_s)
    for number in range(at_most):
        try:
            assert systemd.recv(100) == b"WATCHDOG=1"
        except TimeoutError:
            return number
    return at_most


def test_it_counts_looks_without_a_move_and_forgets_them_with_one_or_in_a_rest() -> None:
    moves = iter([1, 1, 1, 2, 2, None, None, 2, 2])
    watchdog = Watchdog(lambda: next(moves))
    assert [watchdog.look() for _ in range(9)] == [0, 1, 2, 0, 1, 0, 0, 0, 1]


@pytest.mark.processes
def test_a_flexod_whose_controller_is_stuck_ends_with_1_and_shows_where() -> None:
    out, err = begin("controller_is_stuck_in_a_turn").communicate(timeout=WITHIN_S)
    assert out == "begun\n"
    assert says(err, "controller", "not moved")
    assert "grants stand" in err
    assert "from controller_is_stuck_in_a_turn (" in err


@pytest.mark.processes
def test_a_flexod_whose_event_loop_is_stuck_ends_too() -> None:
    process = begin("controller_goes_on", "and_the_loop_waits_for_it")
    out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out) == (1, "begun\n")
    assert says(err, "event loop", "not moved")


@pytest.mark.thorough
def test_long_turns_that_get_on_and_long_rests_end_nothing() -> None:
    process = begin("controller_goes_on")
    out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out, err) == (0, "begun\nwent on to its end\n", "")


@pytest.mark.thorough
def test_a_flexod_that_was_stopped_itself_goes_on() -> None:
    process = begin("controller_goes_on")
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out) == (0, "went on to its end\n")


@pytest.mark.thorough
def test_a_log_that_hangs_too_keeps_no_flexod_from_ending() -> None:
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, bytes(fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ)))  # full: who writes more waits
        process = begin("controller_is_stuck_in_a_turn", stderr=write_end)
        assert process.wait(WITHIN_S) == 1
        assert process.stdout is not None
        process.stdout.close()
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.thorough
def test_while_nothing_is_stuck_systemd_hears_so_at_each_look(systemd: socket.socket) -> None:
    process = begin("controller_goes_on", watched_by=systemd)
    assert signs_of_life(systemd, 20, WITHIN_S) == 20
    assert process.communicate(timeout=WITHIN_S)[1] == ""
    assert process.returncode == 0


@pytest.mark.processes
def test_a_flexod_that_is_stuck_is_silent_and_ends_itself_under_systemd_too(systemd: socket.socket) -> None:
    process = begin("controller_is_stuck_in_a_turn", watched_by=systemd)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert "from controller_is_stuck_in_a_turn (" in err
    assert 0 < signs_of_life(systemd, 1000, 0.1) <= 11  # it ends at the tenth look without a move


@pytest.mark.processes
def test_a_flexod_that_can_run_nothing_is_silent_and_says_where_it_is_when_systemd_ends_it(
    systemd: socket.socket,
) -> None:
    process = begin("native_code_holds_pythons_lock", watched_by=systemd)
    assert signs_of_life(systemd, 1000, 2.0) < 1000
    assert process.poll() is None
    process.send_signal(signal.SIGABRT)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == -signal.SIGABRT
    assert "in native_code_holds_pythons_lock" in err


@pytest.mark.thorough
def test_a_systemd_that_watches_another_process_hears_nothing(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", "1")
    process = begin("controller_goes_on", watched_by=systemd)
    assert process.communicate(timeout=WITHIN_S)[1] == ""
    assert signs_of_life(systemd, 1, 0.1) == 0
