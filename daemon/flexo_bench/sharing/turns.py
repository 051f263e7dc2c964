"""Processes that train in turns: all of them are there from the start, and all but one way's are
stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from horovod_elastic.sharing import environment, status

FIRST_STEPS = 5
STARTS_WITHIN_S = 120.0


class JobFailed(RuntimeError):
    """A job of the benchmark ended, or took no step."""


@dataclass
class Job:
    """A process that trains. `core`: the core that it is bound to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def steps(self) -> list[tuple[float, float]]:
        """For each step: when it ended, and the CPU seconds of the process until then."""
        if not self.log.exists():
            return []
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [(float(line[0]), float(line[1])) for line in lines if len(line) == 2]

    def within(self, began: float, ended: float) -> list[tuple[float, float]]:
        """The steps that ended in a window of time.monotonic()."""
        return [step for step in self.steps() if began <= step[0] <= ended]

    def check(self) -> None:
        """Raise JobFailed if it has ended."""
        if (code := self.process.poll()) is not None:
            raise JobFailed(f"{self.name} has ended with {code}; its output: {self.log}.err")


class InterleavedJobs:
    """The processes of one pair. `folder`: for logs and the coordinator. `core`: shared by all jobs."""

    def __init__(self, folder: Path, core: int | None, device: str) -> None:
        self.folder, self._core, self._device = folder, core, device
        self._started: list[subprocess.Popen[bytes]] = []
        self._groups: dict[str, list[subprocess.Popen[bytes]]] = {}

    def start(self, way: str, name: str, kind: str, hold: str = "none", role: str = "", gpu: str = "") -> Job:
        """Start a job that belongs to `way`, in a role on a shared GPU if it has one."""
        log = self.folder / f"{way}-{name}.log"
        script = [sys.executable, "-m", "flexo_bench.sharing.jobs", kind, str(log), "--hold", hold]
        script += ["--device", self._device]
        share = (
            [sys.executable, "-m", "horovod_elastic.sharing.command", role, "--gpu", gpu, "--"]
            if role
            else []
        )
        return Job(f"{way} {name}", self._popen(way, [*share, *script], log, bound=True), log)

    def start_coordinator(self, way: str, declared: Sequence[str]) -> None:
        """Start the coordinator of `way`, on any core."""
        command = [sys.executable, "-m", "horovod_elastic.sharing.command", "coordinator", *declared]
        before = time.time()
        process = self._popen(way, command, self.folder / "coordinator.log", bound=False)
        end = time.monotonic() + STARTS_WITHIN_S
        while self._status_time() < before:
            if process.poll() is not None or time.monotonic() > end:
                raise JobFailed(f"the coordinator does not start: {self.folder}/coordinator.log.err")
            time.sleep(0.1)

    def _status_time(self) -> float:
        with suppress(status.NoStatus):
            return status.read(self.folder).updated_at
        return 0.0

    def _popen(self, way: str, command: Sequence[str], log: Path, bound: bool) -> subprocess.Popen[bytes]:
        added = {**os.environ, environment.FOLDER: str(self.folder), "OMP_NUM_THREADS": "1"}
        core = self._core if bound else None
        with log.with_name(log.name + ".err").open("wb") as errors:
            process = subprocess.Popen(
                command,
                env=added,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
            )
        self._started.append(process)
        self._groups.setdefault(way, []).append(process)
        return process

    def signal(self, way: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a way, children too: each is a session of its own."""
        for process in self._groups.get(way, ()):
            for pid in _session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    @contextmanager
    def turn(self, way: str, settle_s: float) -> Iterator[None]:
        """Let one way's processes run."""
        self.signal(way, signal.SIGCONT)
        try:
            time.sleep(settle_s)
            yield
        finally:
            self.signal(way, signal.SIGSTOP)

    def wait_for_steps(self, jobs: Sequence[Job], count: int = FIRST_STEPS) -> None:
        """Wait until all jobs have taken some steps. Raises JobFailed."""
        end = time.monotonic() + STARTS_WITHIN_S
        while any(len(job.steps()) < count for job in jobs):
            for job in jobs:
                job.check()
            if time.monotonic() > end:
                raise JobFailed(
                    f"{', '.join(job.name for job in jobs)}: no {count} steps in {STARTS_WITHIN_S} s"
                )
            time.sleep(0.2)

    def end(self) -> None:
        """Kill everything that was started."""
        for way in self._groups:
            self.signal(way, signal.SIGKILL)
        for process in self._started:
            process.wait()


def _session(leader: int) -> list[int]:
    """All processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    found.append(int(entry.name))
    return found
