"""What is measured: flexod's loop and memory, and slurmctld's time for its users with flexod and without."""

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
"""Somebody who uses the cluster meanwhile, and whose RPCs nobody else's are among."""
_BY_USER = re.compile(r"^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)
_WORK = {"main": "Main schedule statistics", "backfill": "Backfilling stats"}
"""What slurmctld does under its locks by itself, and where sdiag tells of it."""
_WORK_CYCLES = re.compile(r"Total cycles:\s+(\d+).*?Mean cycle:\s+(\d+)", re.DOTALL)
_CYCLE = "flexo_cycle_duration_seconds"
_COMMAND = re.compile(
    r'^flexo_slurm_command_duration_seconds_(count|sum)\{command="([^"]*)"\} (\S+)$', re.MULTILINE
)
_LOOK_S = 1.0
"""Between two looks at flexod's metrics: often enough to see each turn of its loop by itself, and seldom
enough not to be what it is busy with."""
_ERRANDS_S = 0.2
_ERRANDS: tuple[tuple[str, ...], ...] = (
    ("sinfo", "--noheader", "--summarize"),
    ("squeue", "--noheader", f"--user={USER}"),
    ("sbatch", "-Q", "--hold", "--output=/dev/null", "--wrap", "true"),
    ("scancel", "--quiet", f"--user={USER}"),
    ("sdiag",),
)
"""The last one says what slurmctld has spent on all of them so far."""


@dataclass(frozen=True, slots=True)
class Rpcs:
    """Of one user, over some time."""

    count: int
    seconds: float
    """What slurmctld spent on them, waiting for its locks included."""

    @property
    def mean_us(self) -> float:
        """Of each; NaN without any."""
        return self.seconds / self.count * 1e6 if self.count else float("nan")


def together(pieces: Sequence[Rpcs]) -> Rpcs:
    """All of them as one."""
    return Rpcs(sum(each.count for each in pieces), sum(each.seconds for each in pieces))


@dataclass(frozen=True, slots=True)
class Work:
    """Of slurmctld's main scheduler or of backfill, over some time."""

    cycles: int
    seconds: float
    """In all of them, without backfill's rests: for so long users' RPCs wait."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One stretch of time. Without flexod `rss_mib` is 0 and what is flexod's empty."""

    seconds: float
    users: Rpcs
    rounds: tuple[Rpcs, ...]
    """The user's, errand by errand through all of them and again; the first round is not among them."""
    flexods: Rpcs
    work: dict[str, Work]
    """slurmctld's own: main, backfill."""
    cycles_s: tuple[float, ...]
    asking_s: tuple[float, ...]
    """Of the commands that read in each cycle, all together; nodes are asked for while squeue prints."""
    commands_s: tuple[tuple[str, int, float], ...]
    """flexod's: which, how many, how long they took in all."""
    rss_mib: float
    flexod_cpu: float
    """Part of one core, its commands included."""


def watch(lab: Lab, seconds: float, metrics_port: int | None) -> Watched:
    """Look for so long; `metrics_port` None: there is no flexod."""
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
    """The `part`-th of 100; NaN without values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


def _page(port: int | None) -> str:
    if port is None:
        return ""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def _cycles(page: str) -> tuple[int, float]:
    """Turns of flexod's loop so far, and the seconds that they took in all."""
    found = dict(re.findall(rf"^{_CYCLE}_(count|sum)(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))
    return int(float(found["count"])), float(found["sum"])


def _asked_s(page: str) -> float:
    """How long all commands have taken that only read."""
    rows = _COMMAND.findall(page)
    return sum(float(value) for kind, command, value in rows if kind == "sum" and _reads(command))


def _reads(command: str) -> bool:
    return command == "squeue" or command.startswith("scontrol show")


def _commands_between(before: str, after: str) -> Iterator[tuple[str, int, float]]:
    """Of flexod's commands: which, how many and how long they took in all."""
    early = {(kind, command): float(value) for kind, command, value in _COMMAND.findall(before)}
    late = {(kind, command): float(value) for kind, command, value in _COMMAND.findall(after)}
    for command in sorted({command for _, command in late}):
        count, total = (late[kind, command] - early.get((kind, command), 0.0) for kind in ("count", "sum"))
        yield command, int(count), total


def _rpcs(sdiag: str) -> dict[str, Rpcs]:
    """By user: all of theirs so far."""
    found = _BY_USER.findall(sdiag[sdiag.index("by user") :])
    return {user: Rpcs(int(count), int(total) / 1e6) for user, count, total in found}


def _work_between(before: str, after: str, title: str) -> Work:
    (early, early_s), (late, late_s) = _work(before, title), _work(after, title)
    return Work(late - early, late_s - early_s)


def _work(sdiag: str, title: str) -> tuple[int, float]:
    """Cycles so far, and the seconds that they took in all."""
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
    """The same errands again and again, so that with and without flexod slurmctld is asked the same.

    Yields what the last errand of each round said.
    """
    stop, said = threading.Event(), list[str]()
    options: dict[str, Any] = {"env": lab.environment(USER), "cwd": lab.scratch, "user": USER}

    def run() -> None:
        while not stop.is_set():
            for errand in _ERRANDS:
                done = subprocess.run(
                    errand, **options, capture_output=True, text=True, timeout=120, check=False
                )
            if done.returncode == 0:
                said.append(done.stdout)
            stop.wait(_ERRANDS_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join()
