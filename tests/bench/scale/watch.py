"""What is measured: flexod's loop and memory, and slurmctld's time for its users with flexod and without."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flexo.lab.lab import Lab

USER = "games"
"""Somebody who uses the cluster meanwhile, and whose RPCs nobody else's are among."""
_BY_USER = re.compile(r"^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)
_CYCLE = "flexo_cycle_duration_seconds"
_LOOK_S = 0.2
_ERRANDS_S = 1.0
_ERRANDS: tuple[tuple[str, ...], ...] = (
    ("sinfo", "--noheader", "--summarize"),
    ("squeue", "--noheader", f"--user={USER}"),
    ("sbatch", "-Q", "--hold", "--output=/dev/null", "--wrap", "true"),
    ("scancel", "--quiet", f"--user={USER}"),
    ("sdiag",),
)


@dataclass(frozen=True, slots=True)
class Rpcs:
    """Of one user, over some time."""

    count: int
    mean_us: float

    @property
    def seconds(self) -> float:
        """What slurmctld spent on all of them."""
        return self.count * self.mean_us / 1e6 if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Watched:
    """One stretch of time. Without flexod `cycles_s` is empty and `rss_mib` 0."""

    seconds: float
    users: Rpcs
    flexods: Rpcs
    cycles_s: tuple[float, ...]
    rss_mib: float
    flexod_cpu: float
    """Part of one core, its commands included."""


def watch(lab: Lab, seconds: float, metrics_port: int | None) -> Watched:
    """Look for so long; `metrics_port` None: there is no flexod."""
    before, began = _rpcs(lab), time.monotonic()
    flexod = lab.flexod_processes()[0] if metrics_port is not None else None
    cpu_before = sum(flexod.cpu_times()[:4]) if flexod else 0.0
    cycles, rss = [], 0.0
    with _somebody_uses(lab):
        seen = _cycles(metrics_port)
        while time.monotonic() - began < seconds:
            time.sleep(_LOOK_S)
            if flexod is None:
                continue
            now = _cycles(metrics_port)
            if now[0] > seen[0]:
                cycles.append((now[1] - seen[1]) / (now[0] - seen[0]))
                seen = now
            rss = max(rss, flexod.memory_info().rss / 2**20)
    elapsed = time.monotonic() - began
    after = _rpcs(lab)
    cpu = (sum(flexod.cpu_times()[:4]) - cpu_before) / elapsed if flexod else 0.0
    account = lab.spec.flexod_account
    return Watched(
        elapsed, _between(before, after, USER), _between(before, after, account), tuple(cycles), rss, cpu
    )


def percentile(values: tuple[float, ...], part: int) -> float:
    """The `part`-th of 100; NaN without values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


def _cycles(port: int | None) -> tuple[int, float]:
    """Turns of flexod's loop so far, and the seconds that they took in all."""
    if port is None:
        return 0, 0.0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = dict(re.findall(rf"^{_CYCLE}_(count|sum)(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))
    return int(float(found["count"])), float(found["sum"])


def _rpcs(lab: Lab) -> dict[str, tuple[int, int]]:
    """By user: RPCs so far, and the microseconds that slurmctld spent on them."""
    text = lab.run(["sdiag"], timeout=120).stdout
    return {
        user: (int(count), int(total))
        for user, count, total in _BY_USER.findall(text[text.index("by user") :])
    }


def _between(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], user: str) -> Rpcs:
    count, total = (
        late - early for late, early in zip(after.get(user, (0, 0)), before.get(user, (0, 0)), strict=True)
    )
    return Rpcs(count, total / count if count else float("nan"))


@contextmanager
def _somebody_uses(lab: Lab) -> Iterator[None]:
    """The same errands again and again, so that with and without flexod slurmctld is asked the same."""
    stop = threading.Event()
    options: dict[str, Any] = {"env": lab.environment(USER), "cwd": lab.scratch, "user": USER}

    def run() -> None:
        while not stop.is_set():
            for errand in _ERRANDS:
                subprocess.run(errand, **options, capture_output=True, timeout=120, check=False)
            stop.wait(_ERRANDS_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
