"""The CPU time of a ResourceManager's threads: Java prints it when it gets SIGQUIT."""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_THREAD = re.compile(r'^"(?P<name>.*?)" .*?\bcpu=(?P<ms>[\d.]+)ms\b.*?\bnid=(?P<nid>\S+)', re.MULTILINE)
_BEGINS, _ENDS = "Full thread dump", "JNI global refs"
_DUMP_S = 10.0
_RPC: Final = re.compile(
    r"IPC Server handler \d+ on (default port )?8032|Socket Reader #\d+ for port 8032"
    r"|IPC Server listener on 8032|IPC Server Responder"
)
"""Threads that answer clients by RPC. Responders of all ports have one name: all count here."""
_REST: Final = re.compile(r"qtp.*")
_ASYNCHRONOUS: Final = re.compile(r"AsyncCapacitySchedulerThread\d*|AsyncCapacityResourceCommitter.*")
_JVM: Final = re.compile(r"(C[12] CompilerThread|GC Thread|G1 |VM Thread|VM Periodic).*")


@dataclass(frozen=True, slots=True)
class RmCpu:
    """The CPU time (seconds) of a ResourceManager over some time."""

    seconds: float
    """How long that was."""
    process: float
    """Of the whole process, by the kernel's account."""
    rpc: float
    """Of the threads that answer clients by RPC: flexod, if nobody else asks."""
    rest: float
    """Of those that answer by REST."""
    asynchronous: float
    """Of the scheduler's own threads, which Hadoop 3.5 runs by default, and which are busy while demand
    waits."""
    jvm: float
    """Of compilers and garbage collection."""

    @property
    def clients(self) -> float:
        """Of all threads that answer clients."""
        return self.rpc + self.rest


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The CPU times so far, at one moment."""

    at: float
    process_s: float
    threads_s: dict[tuple[str, str], float]
    """By name and the kernel's number."""


def snapshot(rm: psutil.Process, output: Path) -> Snapshot:
    """Have the ResourceManager print its threads to `output`, its standard output. Raises TimeoutError."""
    start = output.stat().st_size
    times = rm.cpu_times()
    at = time.monotonic()
    rm.send_signal(signal.SIGQUIT)
    while not (text := _dump(output, start)):
        if time.monotonic() > at + _DUMP_S:
            raise TimeoutError(f"no list of threads in {output}")
        time.sleep(0.05)
    found = {(each["name"], each["nid"]): float(each["ms"]) / 1000 for each in _THREAD.finditer(text)}
    return Snapshot(at, times.user + times.system, found)


def _dump(output: Path, start: int) -> str:
    with output.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    return text if _BEGINS in text and _ENDS in text else ""


def between(early: Snapshot, late: Snapshot) -> RmCpu:
    """What was spent from `early` to `late`. A thread that ended meanwhile counts for the process only."""
    spent: dict[str, float] = defaultdict(float)
    for (name, number), seconds in late.threads_s.items():
        spent[name] += seconds - early.threads_s.get((name, number), 0.0)

    def of(names: re.Pattern[str]) -> float:
        return sum(seconds for name, seconds in spent.items() if names.fullmatch(name))

    return RmCpu(
        seconds=late.at - early.at,
        process=late.process_s - early.process_s,
        rpc=of(_RPC),
        rest=of(_REST),
        asynchronous=of(_ASYNCHRONOUS),
        jvm=of(_JVM),
    )
