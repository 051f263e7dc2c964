"""Looks at a cluster with one reader, in a process of its own that is measured with its children.

Processor time is the kernel's own count in nanoseconds (clock_getcpuclockid(3)), of a process and of all its
threads, ended ones too.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from flexo.clusters.slurm.commands import SlurmCommands
from flexo.clusters.slurm.reader import Reader
from flexo.clusters.slurm.reader_commands import CommandReader
from flexo.clusters.slurm.reader_pyslurm import PyslurmReader
from flexo.model.nodes import Partition
from flexo_bench.reading.content import Look

COMMANDS, ANEW, PYSLURM = "commands", "commands, nothing known", "pyslurm"
"""The readers: flexod's two, and that of commands as at its first look, without a memory of the last one."""
_SATELLITES = frozenset({"flex"})
_TIMEOUT_S = 120.0
_SAMPLED_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one look on flexod's side."""

    wall_s: float
    own_cpu_s: float
    """Processor time of the process of the reader, which is flexod's own."""
    children_cpu_s: float
    """Processor time of the processes that the reader has started, whether they ended or not."""

    @property
    def cpu_s(self) -> float:
        """All processor time."""
        return self.own_cpu_s + self.children_cpu_s


class Looker:
    """A process that looks with one reader when it is told to."""

    def __init__(self, kind: str, slurm_conf: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, slurm_conf))
        self._process.start()
        theirs.close()

    def look(self) -> tuple[Cost, Look]:
        """Look once, at jobs and nodes. Raises RuntimeError with what the reader said of a failure."""
        cost, look = self._ask("look")
        assert isinstance(cost, Cost)
        assert isinstance(look, Look)
        return cost, look

    def partitions(self) -> tuple[Partition, ...]:
        """The partitions, which flexod reads more seldom than the rest. Raises RuntimeError."""
        return tuple(self._ask("partitions"))

    def _ask(self, question: str) -> Any:
        self._pipe.send(question)
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def peak_mib(self) -> tuple[float, float]:
        """Look once more; the most memory (RSS, MiB) of the process meanwhile, and of it with its children.

        The memory is read every 5 ms, which costs the reader time: such a look is not measured otherwise.
        """
        with _sampled(self._process.pid or 0) as samples:
            self.look()
        return max(own for own, _ in samples), max(own + children for own, children in samples)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()


def cpu_clock(pid: int) -> Callable[[], float]:
    """A function that returns the processor time of a process in seconds. Raises ProcessLookupError."""
    clock = ctypes.c_int()
    if error := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(error, os.strerror(error), pid)
    return lambda: time.clock_gettime(clock.value)


def _serve(pipe: Connection, kind: str, slurm_conf: Path) -> None:
    reader = _reader(kind, slurm_conf)
    with contextlib.suppress(EOFError):
        while question := pipe.recv():
            if kind == ANEW:
                reader = _reader(kind, slurm_conf)
            try:
                answer: object = _look(reader) if question == "look" else reader.partitions()
            except Exception as error:
                answer = f"{kind}: {type(error).__name__}: {error}"
            pipe.send(answer)
    if isinstance(reader, PyslurmReader):
        reader.close()


def _reader(kind: str, slurm_conf: Path) -> Reader:
    if kind == PYSLURM:
        return PyslurmReader(slurm_conf, _SATELLITES, _TIMEOUT_S)
    return CommandReader(SlurmCommands(slurm_conf, _TIMEOUT_S), _SATELLITES)


def _look(reader: Reader) -> tuple[Cost, Look]:
    own, children, wall = time.process_time(), _children_cpu_s(), time.perf_counter()
    jobs, nodes = reader.look()
    cost = Cost(time.perf_counter() - wall, time.process_time() - own, max(0.0, _children_cpu_s() - children))
    return cost, Look(jobs, nodes, ())


def _children_cpu_s() -> float:
    """Processor time of all children, those that ended and those that live."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(cpu_clock(child.pid)() for child in psutil.Process().children(recursive=True))
    return ended.ru_utime + ended.ru_stime + living


@contextlib.contextmanager
def _sampled(pid: int) -> Iterator[list[tuple[float, float]]]:
    """RSS of a process and of its children in MiB, read again and again during the context."""
    samples, stop = list[tuple[float, float]](), threading.Event()
    process = psutil.Process(pid)

    def sample() -> None:
        while not stop.is_set():
            children = 0.0
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    children += child.memory_info().rss
            samples.append((process.memory_info().rss / 2**20, children / 2**20))
            stop.wait(_SAMPLED_EVERY_S)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
