"""What the network namespaces of make bench-service need of a machine, and that none is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from flexo_bench.service import namespaces
from flexo_bench.service.namespaces import network
from flexo_bench.service.setting import PartMissing

pytestmark = pytest.mark.thorough


def try_it() -> None:
    with network(2, "100mbit"):
        pytest.fail("nothing was missing")


def test_only_root_makes_namespaces(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PartMissing, match="only root"):
        try_it()


def test_a_missing_program_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "tc" else f"/sbin/{program}")
    with pytest.raises(PartMissing, match=r"`tc`.*iproute2"):
        try_it()


def test_a_machine_that_forbids_it_is_told_from_a_failure_and_nothing_is_left(monkeypatch, tmp_path):
    commands: list[list[str]] = []

    def run(command, **options):
        commands.append(list(command))
        if command[0] == "tc":
            raise subprocess.CalledProcessError(2, command, stderr="Operation not permitted\n")
        if list(command[:3]) == ["ip", "netns", "add"]:
            (tmp_path / command[3]).touch()
        if list(command[:3]) == ["ip", "netns", "del"]:
            (tmp_path / command[3]).unlink()

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr(namespaces, "_FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(PartMissing, match="Operation not permitted"):
        try_it()
    assert list(tmp_path.iterdir()) == []
    assert [command[3] for command in commands if command[2] == "del"] != []


def test_namespaces_of_a_benchmark_that_was_killed_are_removed(monkeypatch, tmp_path):
    gone = 2**22 + 1  # the kernel gives no such process id
    for name in (f"flexo-bench-{gone}-0", f"flexo-bench-{os.getpid()}-switch", "others"):
        (tmp_path / name).touch()
    removed: list[str] = []
    monkeypatch.setattr(namespaces, "_FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: removed.append(command[3]))
    namespaces._remove_left_over()
    assert removed == [f"flexo-bench-{gone}-0"]
