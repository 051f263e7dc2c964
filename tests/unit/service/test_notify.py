"""What flexod tells systemd, on a socket as systemd makes one."""

from __future__ import annotations

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
