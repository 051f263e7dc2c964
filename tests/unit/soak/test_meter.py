"""What flexod takes is read from the kernel and from its metrics."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from soak import meter

pytestmark = pytest.mark.thorough

PAGE = """\
# TYPE flexo_cycles_total counter
flexo_cycles_total{outcome="done"} 41.0
flexo_cycles_total{outcome="unreachable"} 2.0
flexo_jobs{state="training"} 1.0
flexo_jobs{state="waiting"} 0.0
"""


def test_the_loops_turns_count_however_they_ended() -> None:
    assert meter.total_of(meter._CYCLES, PAGE) == 43
    assert meter.total_of(meter._JOBS, PAGE) == 1
    with pytest.raises(ValueError, match="flexo_cycles"):
        meter.total_of(meter._CYCLES, "")


def test_the_cpu_time_of_another_process_is_its_own() -> None:
    busy = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass\nprint()\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        spent = meter.cpu_s(busy.pid)
        time.sleep(0.1)
        assert meter.cpu_s(busy.pid) == pytest.approx(spent, abs=0.01)
        busy.communicate(b"\n")
    assert 0.5 <= spent < 5


def test_memory_that_is_written_to_is_resident_and_belongs_to_no_file() -> None:
    before = meter.memory_mib(os.getpid())
    block = bytearray(b"x") * (64 * 2**20)
    after = meter.memory_mib(os.getpid())
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([64, 64], abs=4)
    assert block


def test_what_a_process_holds_names_its_files_its_connections_and_its_commands(tmp_path: Path) -> None:
    held = meter.Meter(psutil.Process(), 0, tmp_path)
    with (
        (tmp_path / "open").open("w"),
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(["sleep", "60"]) as command,
    ):
        found, port = held._holds(), server.getsockname()[1]
        command.kill()
    assert str(tmp_path / "open") in found
    assert f"socket LISTEN 127.0.0.1:{port}" in found
    assert "runs sleep 60" in found


def test_pages_of_the_event_store_that_hold_nothing_do_not_count(tmp_path: Path) -> None:
    store = tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(store)) as connection:
        connection.execute("CREATE TABLE event (text TEXT)")
        connection.execute("INSERT INTO event VALUES (?)", ("x" * 100_000,))
        connection.commit()
        assert 100_000 < meter.size_of(store) < 130_000
        connection.execute("DELETE FROM event")
        connection.commit()
    assert store.stat().st_size > 100_000
    assert meter.size_of(store) < 10_000
