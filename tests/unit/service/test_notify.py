"""What flexod tells systemd, on a socket as systemd makes one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import structlog

from flexo.service import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_on_its_socket_whether_that_is_a_file_or_abstract(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool
) -> None:
    name = f"@{tmp_path}/notify" if abstract else f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify.tell(notify.READY)
        assert systemd.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens_and_with_a_deaf_one_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as logged:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        notify.tell(notify.READY)
        assert logged == []
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
        notify.tell(notify.STOPPING)
    assert [str(tmp_path) in each["event"] for each in logged] == [True]


def test_a_sign_of_life_neither_waits_for_a_systemd_that_reads_nothing_nor_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        structlog.testing.capture_logs() as logged,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        systemd.bind(f"{tmp_path}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        for _ in range(2000):  # more than its socket holds
            notify.alive()
        assert systemd.recv(100) == b"WATCHDOG=1"
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/none")
        notify.alive()
    assert logged == []


@pytest.mark.parametrize(
    ("microseconds", "process", "seconds"),
    [
        ("120000000", "this process", 120.0),
        ("120000000", None, 120.0),
        ("120000000", "1", None),  # it watches another process
        ("0", None, None),
        ("soon", None, None),
        (None, None, None),
    ],
)
def test_systemd_watches_this_process_where_its_environment_says_so(
    monkeypatch: pytest.MonkeyPatch, microseconds: str | None, process: str | None, seconds: float | None
) -> None:
    for name, value in (("WATCHDOG_USEC", microseconds), ("WATCHDOG_PID", process)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value.replace("this process", str(os.getpid())))
    assert notify.watchdog_s() == seconds
