"""Ports that nobody has, and what sinfo says of GPUs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from flexo_lab import requirements, take_down
from flexo_lab.ports import free_ports, is_listening
from flexo_lab.status import parse_gpus_used


def test_ports_are_different_free_and_none_that_another_lab_was_promised() -> None:
    first = free_ports(20, promised=frozenset())
    second = free_ports(20, promised=frozenset(first))
    assert len(set(first) | set(second)) == 40
    for port in first:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_ports_that_the_kernel_hands_out_are_left_alone() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in free_ports(200, frozenset()) if low <= port <= high]


def test_a_port_listens_once_somebody_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not is_listening(port)
        server.listen()
        assert is_listening(port)


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("gpu:0(IDX:N/A)", 0),
        ("gpu:v100:2(IDX:0-1)", 2),
        ("gpu:a:1(IDX:0),gpu:b:3(IDX:1-3)", 4),
        ("(null)", 0),
    ],
)
def test_the_gpus_in_use_are_read_from_what_sinfo_prints(text: str, used: int) -> None:
    assert parse_gpus_used(text) == used


def test_without_root_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (requirements.why_unavailable() or "").startswith("a lab needs root")


def test_without_slurm_one_sentence_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "SYSTEM_PATH", "/nowhere")
    reason = requirements.why_unavailable() or ""
    assert "apt-get install slurmctld slurmd slurm-client munge" in reason


def test_taking_down_what_is_not_there_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXO_LABS", "/tmp/no-labs-here")
    assert take_down("nobody") is False
