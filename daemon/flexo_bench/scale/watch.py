"""Measures flexod's cycle and memory, and slurmctld's time for its users with flexod and without."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flexo_lab.lab import Lab

USER = "games"
"""The user of the cluster whose RPCs are measured. No other process uses this account."""
_BY_USER = re.compile(r"^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)
_WORK = {"main": "Main schedule statistics", "backfill": "Backfilling stats"}
"""slurmctld's own work under its locks, and the title of its section in sdiag."""
_WORK_CYCLES = re.compile(r"Total cycles:\s+(\d+).*?Mean cycle:\s+(\d+)", re.DOTALL)
_CYCLE = "flexo_cycle_duration_seconds"
_COMMAND = re.compile(
    r'^flexo_slurm_command_duration_seconds_(count|sum)\{command="([^"]*)"\} (\S+)$', re.MULTILINE
)
_LOOK_S = 1.0
"""Interval between two polls of flexod's metrics.

It is short enough to see each cycle of flexod by itself, and long enough to be no load for flexod.
"""
_COMMANDS_EVERY_S = 0.2
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("sinfo", "--noheader", "--summarize"),
    ("squeue", "--noheader", f"--user={USER}"),
    ("sbatch", "-Q", "--hold", "--output=/dev/null", "--wrap", "true"),
    ("scancel", "--quiet", f"--user={USER}"),
    ("sdiag",),
)
"""Commands of one round of the user. The last one prints slurmctld's time for all of them so far."""


@dataclass(frozen=True, slots=True)
class Rpcs:
    """RPCs of one user, over some time."""

    count: int
    seconds: float
    """slurmctld's time for the RPCs, including the wait for its locks."""

    @property
    def mean_us(self) -> float:
        """Mean time of an RPC in microseconds; NaN without any RPC."""
        return self.seconds / self.count * 1e6 if self.count else float("nan")


def together(pieces: Sequence[Rpcs]) -> Rpcs:
    """The sum of all pieces."""
    return Rpcs(sum(each.count for each in pieces), sum(each.seconds for each in pieces))


@dataclass(frozen=True, slots=True)
class Work:
    """Work of slurmctld's main scheduler or of backfill, over some time."""

    cycles: int
    seconds: float
    """Time of all cycles, without backfill's rests. Users' RPCs wait during this time."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One watched stretch of time. Without flexod, `rss_mib` is 0 and flexod's fields are empty."""

    seconds: float
    users: Rpcs
    rounds: tuple[Rpcs, ...]
    """RPCs of the user in each round of its commands, without the first round."""
    flexods: Rpcs
    work: dict[str, Work]
    """Work of slurmctld itself: main, backfill."""
    cycles_s: tuple[float, ...]
    asking_s: tuple[float, ...]
    """Per cycle: total time of the commands that read Slurm. Some of them run at the same time."""
    commands_s: tuple[tuple[str, int, float], ...]
    """Commands of flexod: name, number, total time."""
    rss_mib: float
    flexod_cpu: float
    """Part of one core that flexod uses, its commands included."""


def watch(lab: Lab, seconds: float, metrics_port: int | None) -> Watched:
    """Watch the lab for `seconds`. `metrics_port` None: there is no flexod."""
    said_before, began = lab.run(["sdiag"], timeout=120).stdout, time.monotonic()
    flexod = lab.flexod_processes()[0] if metrics_port is not None else None
    cpu_before = sum(flexod.cpu_times()[:4]) if flexod else 0.0
    cycles, asking, rss = [], [], 0.0
    with _somebody_uses(lab) as said:
        page_before = page = _page(metrics_port)
        asked_before = _asked_s(page)
        while time.monotonic() - began < seconds:
            time.sleep(_LOOK_S)
            if flexod is None:
                continue
            last, page = page, _page(metrics_port)
            (count_before, sum_before), (count, total) = _cycles(last), _cycles(page)
            if count > count_before:
                cycles.append((total - sum_before) / (count - count_before))
                asked = _asked_s(page)
                asking.append((asked - asked_before) / (count - count_before))
                asked_before = asked
            rss = max(rss, flexod.memory_info().rss / 2**20)
    elapsed = time.monotonic() - began
    said_after = lab.run(["sdiag"], timeout=120).stdout
    before, after = _rpcs(said_before), _rpcs(said_after)
    cpu = (sum(flexod.cpu_times()[:4]) - cpu_before) / elapsed if flexod else 0.0
    users = [_rpcs(text).get(USER, Rpcs(0, 0.0)) for text in said]
    return Watched(
        seconds=elapsed,
        users=_between(before, after, USER),
        rounds=tuple(_less(late, early) for early, late in pairwise(users)),
        flexods=_between(before, after, lab.spec.flexod_account),
        work={name: _work_between(said_before, said_after, title) for name, title in _WORK.items()},
        cycles_s=tuple(cycles),
        asking_s=tuple(asking),
        commands_s=tuple(_commands_between(page_before, page)),
        rss_mib=rss,
        flexod_cpu=cpu,
    )


def percentile(values: Sequence[float], part: int) -> float:
    """The `part`-th percentile; NaN without values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


def _page(port: int | None) -> str:
    if port is None:
        return ""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def _cycles(page: str) -> tuple[int, float]:
    """Number of flexod's cycles so far, and their total time in seconds."""
    found = dict(re.findall(rf"^{_CYCLE}_(count|sum)(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))
    return int(float(found["count"])), float(found["sum"])


def _asked_s(page: str) -> float:
    """Total time of flexod's commands that only read, in seconds."""
    rows = _COMMAND.findall(page)
    return sum(float(value) for kind, command, value in rows if kind == "sum" and _reads(command))


def _reads(command: str) -> bool:
    return command == "squeue" or command.startswith("scontrol show")


def _commands_between(before: str, after: str) -> Iterator[tuple[str, int, float]]:
    """flexod's commands between two pages of metrics: name, number, total time."""
    early = {(kind, command): float(value) for kind, command, value in _COMMAND.findall(before)}
    late = {(kind, command): float(value) for kind, command, value in _COMMAND.findall(after)}
    for command in sorted({command for _, command in late}):
        count, total = (late[kind, command] - early.get((kind, command), 0.0) for kind in ("count", "sum"))
        yield command, int(count), total


def _rpcs(sdiag: str) -> dict[str, Rpcs]:
    """RPCs per user so far."""
    found = _BY_USER.findall(sdiag[sdiag.index("by user") :])
    return {user: Rpcs(int(count), int(total) / 1e6) for user, count, total in found}


def _work_between(before: str, after: str, title: str) -> Work:
    (early, early_s), (late, late_s) = _work(before, title), _work(after, title)
    return Work(late - early, late_s - early_s)


def _work(sdiag: str, title: str) -> tuple[int, float]:
    """Number of cycles so far, and their total time in seconds."""
    found = _WORK_CYCLES.search(sdiag, sdiag.index(title))
    count, mean_us = (int(found[1]), int(found[2])) if found else (0, 0)
    return count, count * mean_us / 1e6


def _between(before: dict[str, Rpcs], after: dict[str, Rpcs], user: str) -> Rpcs:
    none = Rpcs(0, 0.0)
    return _less(after.get(user, none), before.get(user, none))


def _less(late: Rpcs, early: Rpcs) -> Rpcs:
    return Rpcs(late.count - early.count, late.seconds - early.seconds)


@contextmanager
def _somebody_uses(lab: Lab) -> Iterator[list[str]]:
    """Run the user's commands in rounds, so that slurmctld gets the same load with and without flexod.

    Yields the output of the last command of each round.
    """
    stop, said = threading.Event(), list[str]()
    options: dict[str, Any] = {"env": lab.environment(USER), "cwd": lab.scratch, "user": USER}

    def run() -> None:
        while not stop.is_set():
            for command in _COMMANDS:
                done = subprocess.run(
                    command, **options, capture_output=True, text=True, timeout=120, check=False
                )
            if done.returncode == 0:
                said.append(done.stdout)
            stop.wait(_COMMANDS_EVERY_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join()
