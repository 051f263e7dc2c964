"""A thread that flexod cannot do without takes the process along when an error ends it."""

from __future__ import annotations

import subprocess
import sys

import pytest

STORY = """
import asyncio, sys, threading, time
from prometheus_client import CollectorRegistry
from flexo.config import LogSettings
from flexo.metrics.counters import Counters
from flexo.service import logs, metrics_endpoint, watchdog

logs.set_up(LogSettings())
watchdog.LOOK_S = 0.01

def fail(*_):
    raise ZeroDivisionError("as the test says")

async def watching():
    watchdog.Watchdog.look = fail
    with watchdog.none_allowed(Counters(CollectorRegistry()), asyncio.get_running_loop(), 0.1):
        await asyncio.sleep(60)

def measuring():
    metrics_endpoint._Server.serve_forever = fail
    with metrics_endpoint.metrics_served("127.0.0.1:0", CollectorRegistry()):
        time.sleep(60)

asyncio.run(watching()) if sys.argv[1] == "watchdog" else measuring()
print("went on", flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", ["watchdog", "metrics"])
def test_its_error_ends_the_process_with_1_and_stands_in_the_log(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORY, name], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert f"'{name}' has failed" in said
    assert "ZeroDivisionError: as the test says" in said
    assert "went on" not in said
