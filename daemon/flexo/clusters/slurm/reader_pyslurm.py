"""Reads Slurm with pyslurm, in a process of its own.

libslurm retries for minutes while slurmctld is away, holds Python's lock meanwhile, and ends the process on
some errors. flexod must not wait for it, nor end with it. So pyslurm runs in a child process that can be
killed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from flexo.clusters.base import ANSWERED, SILENT, CallEnded, ClusterUnreachable, nobody_counts
from flexo.clusters.slurm.from_pyslurm import to_jobs, to_node, to_partition, why_not_enough
from flexo.clusters.slurm.releases import Release, read_by_pyslurm
from flexo.model.nodes import Node, Partition
from flexo.model.queue import QueuedJob

# Importing pyslurm and its libslurm takes longer than any answer.
_START_S = 30.0


def is_installed() -> bool:
    """Whether pyslurm can be imported; it is not imported here."""
    return importlib.util.find_spec("pyslurm") is not None


class PyslurmReader:
    """The Reader for hosts where pyslurm works."""

    def __init__(
        self,
        slurm_conf: Path | None,
        satellite_partitions: frozenset[str],
        timeout_s: float,
        ended: CallEnded = nobody_counts,
    ) -> None:
        self._ended = ended
        self._slurm_conf = slurm_conf
        self._satellite_partitions = satellite_partitions
        self._timeout_s = timeout_s
        self._child: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._version = ""

    @property
    def name(self) -> str:
        """The name of this reader, as in `pyslurm 25.11.2`."""
        return f"pyslurm {self.version()}"

    def version(self) -> str:
        """pyslurm's own version. Raises ClusterUnreachable."""
        if not self._version:
            self._version = self._ask("version")
        return self._version

    def reads(self) -> Release | None:
        """The release of Slurm that this pyslurm reads; None if it names none. Raises ClusterUnreachable."""
        return read_by_pyslurm(self.version(), int(self._ask("libslurm")))

    def why_not_enough(self) -> str:
        """What pyslurm does not show of this cluster; "" if it shows all that is needed. Raises
        ClusterUnreachable."""
        return str(self._ask("why_not_enough"))

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions."""
        return tuple(self._ask("partitions"))

    def look(self) -> tuple[tuple[QueuedJob, ...], tuple[Node, ...]]:
        """All jobs that wait, run or are ending, and all nodes."""
        return tuple(self._ask("jobs")), tuple(self._ask("nodes"))

    def close(self) -> None:
        """End the child. The next question starts another."""
        if self._child is not None and self._pipe is not None:
            self._pipe.close()
            self._child.kill()
            self._child.join()
        self._child = self._pipe = None

    def _ask(self, question: str) -> Any:
        begun, outcome = time.monotonic(), SILENT
        try:
            answer = self._answer(question)
            outcome = ANSWERED
            return answer
        finally:
            self._ended(f"pyslurm {question}", outcome, time.monotonic() - begun)

    def _answer(self, question: str) -> Any:
        try:
            pipe = self._pipe or self._start()
            pipe.send(question)
            if not pipe.poll(self._timeout_s):
                raise ClusterUnreachable(f"pyslurm ({question}) did not answer within {self._timeout_s:g} s")
            answer = pipe.recv()
        except (EOFError, OSError) as end:
            self.close()
            raise ClusterUnreachable(f"pyslurm ({question}): its process ended") from end
        except ClusterUnreachable:
            self.close()
            raise
        if isinstance(answer, _Failure):
            raise ClusterUnreachable(f"pyslurm ({question}) failed: {answer.words}")
        return answer

    def _start(self) -> Connection:
        # Spawned, not forked: flexod has threads.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_serve, args=(theirs, self._slurm_conf, self._satellite_partitions), daemon=True
        )
        child.start()
        theirs.close()
        self._child, self._pipe = child, ours
        if not self._pipe.poll(_START_S):
            raise ClusterUnreachable(f"pyslurm did not start within {_START_S:g} s")
        ready = self._pipe.recv()
        if isinstance(ready, _Failure):
            self.close()
            raise ClusterUnreachable(f"pyslurm could not be loaded: {ready.words}")
        return self._pipe


class _Failure:
    """An answer that says why there is no result."""

    def __init__(self, error: BaseException) -> None:
        self.words = f"{type(error).__name__}: {error}"


def _serve(pipe: Connection, slurm_conf: Path | None, satellites: frozenset[str]) -> None:
    """The child process: answers questions until the pipe is closed. The pipe closes when flexod ends,
    however it ends."""
    if slurm_conf is not None:
        os.environ["SLURM_CONF"] = str(slurm_conf)  # libslurm reads it while pyslurm is imported
    try:
        answers = _answers(satellites)
    except Exception as error:
        pipe.send(_Failure(error))
        return
    pipe.send("ready")
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        try:
            answer = answers[question]()
        except Exception as error:
            answer = _Failure(error)
        pipe.send(answer)


def _answers(satellites: frozenset[str]) -> dict[str, Callable[[], Any]]:
    import pyslurm

    return {
        "version": lambda: pyslurm.__version__,
        "libslurm": _libslurm,
        "why_not_enough": lambda: why_not_enough(
            pyslurm.slurmctld.Config.load(), pyslurm.Nodes.load().values()
        ),
        "nodes": lambda: [to_node(node) for node in pyslurm.Nodes.load().values()],
        "partitions": lambda: [to_partition(part) for part in pyslurm.Partitions.load().values()],
        "jobs": lambda: to_jobs(pyslurm.Jobs.load().values(), satellites),
    }


def _libslurm() -> int:
    """The number of the loaded libslurm's interface, as in libslurm.so.45; 0 if there is none to ask.

    pyslurm shows the number that its headers had, so the library itself is asked. pyslurm has loaded it for
    all (RTLD_GLOBAL).
    """
    try:
        ask = ctypes.CDLL(None).slurm_api_version
    except AttributeError:
        return 0
    ask.restype = ctypes.c_long
    return int(ask()) >> 16
