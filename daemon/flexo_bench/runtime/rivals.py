"""The ways to resize a training job, behind one interface: start it, resize it, stop it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from flexo_bench import native_horovod
from flexo_bench.runtime.results import CORE_TORCH, OURS
from flexo_bench.runtime.worklog import WorkLog
from flexo_lab import Lab, LabCommandFailed
from horovod_elastic.core.choice import HOROVOD, TORCH

SCRIPT = Path(__file__).resolve().parent / "train.py"
BOUND_S = 120.0
"""How long anything may take before the benchmark gives up."""
POLL_S = 0.1
CORES = {OURS: HOROVOD, CORE_TORCH: TORCH}


class RivalFailed(Exception):
    """It did not do what it was asked; the message holds what it printed."""


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained: the same for every rival."""

    folder: Path
    """Logs and everything else of this run; made by the rival."""
    model: str = "toy"
    step_seconds: float = 0.0
    largest: int = 3
    """Workers that it may grow to."""

    def command(self, *more: str) -> list[str]:
        """The training program's command line."""
        step = ["--step-seconds", str(self.step_seconds)] if self.step_seconds else []
        log_dir = str(self.folder / "logs")
        return [sys.executable, str(SCRIPT), "--log-dir", log_dir, "--model", self.model, *step, *more]


class Rival(Protocol):
    """One way to resize. Raises RivalFailed."""

    name: str
    by_rank: bool
    """Whether a resize ends all processes and starts others."""

    def start(self, training: Training, size: int) -> None:
        """Begin to train with `size` workers; returns at once."""

    def resize(self, size: int) -> float:
        """Have it train with `size` workers; returns when that was asked for, in seconds since the epoch."""

    def stop(self) -> None:
        """End it; nothing of it is left."""

    def said(self) -> str:
        """What it has printed."""


@dataclass
class Stock:
    """Elastic Horovod as it is: horovodrun, and a host discovery script that prints a file we rewrite."""

    name: str = "stock"
    by_rank: bool = False
    _run: _Horovodrun | None = None
    _hosts: Path = Path()

    def start(self, training: Training, size: int) -> None:
        """Slots are of 127.0.0.1's own name, so that no ssh is needed."""
        _make(training.folder)
        self._hosts = training.folder / "hosts"
        self._name_hosts(size)
        script = training.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\nexec cat {self._hosts}\n")
        script.chmod(0o755)
        how = ["-np", str(size), "--min-np", "1", "--max-np", str(training.largest)]
        discover = ["--host-discovery-script", str(script), "--network-interfaces", "lo"]
        self._run = _Horovodrun([*how, *discover], training)

    def resize(self, size: int) -> float:
        """Rewrite the file; the driver looks every second."""
        self._name_hosts(size)
        return time.time()

    def _name_hosts(self, size: int) -> None:
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text(f"localhost:{size}\n")
        fresh.rename(self._hosts)

    def stop(self) -> None:
        """Kill it: how it ends is not measured."""
        if self._run:
            self._run.kill()

    def said(self) -> str:
        """horovodrun's output."""
        return self._run.said() if self._run else ""


@dataclass
class StopRestart:
    """Stop, checkpoint, restart with the new size: plain horovodrun and torch.save."""

    name: str = "restart"
    by_rank: bool = True
    _run: _Horovodrun | None = None
    _training: Training | None = None

    def start(self, training: Training, size: int) -> None:
        """A fixed number of workers."""
        _make(training.folder)
        self._training = training
        self._go(size)

    def _go(self, size: int) -> None:
        assert self._training is not None
        checkpoint = self._training.folder / "checkpoint.pt"
        how = ["--gloo", "-np", str(size), "-H", f"localhost:{size}"]
        self._run = _Horovodrun(how, self._training, "--checkpoint", str(checkpoint))

    def resize(self, size: int) -> float:
        """Tell it to stop, wait until it has, start it again."""
        assert self._training is not None
        assert self._run is not None
        stop = self._training.folder / "logs" / "stop"
        asked_at = time.time()
        stop.touch()
        self._run.wait()
        stop.unlink()
        self._go(size)
        return asked_at

    def stop(self) -> None:
        """Kill it: how the last one ends is not measured."""
        if self._run:
            self._run.kill()

    def said(self) -> str:
        """horovodrun's output."""
        return self._run.said() if self._run else ""


class _Horovodrun:
    """One horovodrun and all that it starts."""

    def __init__(self, how: Sequence[str], training: Training, *more: str) -> None:
        self._output = training.folder / "output.txt"
        self._mark = str(training.folder)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "horovod.runner.launch", *how, *training.command(*more)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it has ended well."""
        try:
            code = self._process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            raise RivalFailed(f"horovodrun does not end\n{self.said()}") from None
        if code != 0:
            raise RivalFailed(f"horovodrun ended with {code}\n{self.said()}")

    def kill(self) -> None:
        """Its workers are in sessions of their own, and known by the folder that they log to."""
        self._process.kill()
        self._process.wait()
        left = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            return process.pid != os.getpid() and any(self._mark in word for word in process.cmdline())
        return False

    def said(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]


@dataclass
class Flexo:
    """`flexo run` in a job of a real Slurm cluster, on one of CORES; resized with `flexo scale`."""

    lab: Lab
    name: str
    by_rank: bool = False
    _folder: Path = Path()
    _job_id: int = 0
    _runs: int = field(default=0)

    def start(self, training: Training, size: int) -> None:
        """Submitted as a user would, then held at its minimum."""
        _make(training.folder)
        self._folder = training.folder
        words, core = shlex.join(training.command()), f"--core={CORES[self.name]}"
        here = Path(sys.executable).parent
        job = training.folder / "job.sbatch"
        trace = training.folder / "trace.jsonl"
        settings = [*native_horovod.exports(), f"FLEXO_TRACE={trace}"]
        exports = "".join(f"export {setting}\n" for setting in settings)
        job.write_text(f"#!/bin/bash\n{exports}exec {shlex.quote(str(here))}/flexo run {core} {words}\n")
        ask = ["-n", str(size), "--gpus-per-task=1", f"--elastic={size}-{training.largest}"]
        answer = self.lab.run(
            ["sbatch", "--parsable", f"--output={training.folder}/output.txt", *ask, str(job)]
        )
        self._job_id = int(answer.stdout.split(";")[0])
        self.resize(size)

    def resize(self, size: int) -> float:
        """Asked again while flexod does not know the job yet, or a change is under way."""
        deadline = time.monotonic() + BOUND_S
        while True:
            asked_at = time.time()
            done = self.lab.run(["flexo", "scale", str(self._job_id), str(size)], check=False)
            if done.returncode == 0:
                return asked_at
            if time.monotonic() > deadline:
                raise RivalFailed(f"flexo scale: {done.stderr.strip()}\n{self.said()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """scancel; wait until it and its satellites are gone."""
        with contextlib.suppress(LabCommandFailed):
            self.lab.run(["scancel", str(self._job_id)])
        deadline = time.monotonic() + BOUND_S
        while self.lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split():
            if time.monotonic() > deadline:
                raise RivalFailed(f"job {self._job_id} does not end\n{self.said()}")
            time.sleep(POLL_S)

    def said(self) -> str:
        """The job's output."""
        output = self._folder / "output.txt"
        return output.read_text(errors="replace")[-4000:] if output.exists() else ""


def _make(folder: Path) -> None:
    """An empty folder, with one for logs in it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)


@contextlib.contextmanager
def running(rival: Rival, training: Training, size: int) -> Iterator[WorkLog]:
    """`rival` at work with `size` workers, and its logs; ended afterwards, whatever happened."""
    try:
        rival.start(training, size)
        yield WorkLog(training.folder / "logs")
    finally:
        rival.stop()


def wait_until_settled(rival: Rival, log: WorkLog, size: int, batches: int, after: float = 0.0) -> None:
    """Until `size` workers have done `batches` mini-batches each since then. Raises RivalFailed."""
    deadline = time.monotonic() + BOUND_S
    while not log.read().settled(size, batches, after):
        if time.monotonic() > deadline:
            raise RivalFailed(f"{rival.name} does not train with {size} workers\n{rival.said()}")
        time.sleep(POLL_S)


def interrupt_on_sigterm() -> None:
    """So that whoever ends the benchmark lets it take down what it started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
