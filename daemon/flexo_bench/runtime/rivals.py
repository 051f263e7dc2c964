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
"""Time after which the benchmark gives up waiting."""
POLL_S = 0.1
CORES = {OURS: HOROVOD, CORE_TORCH: TORCH}


class RivalFailed(Exception):
    """A rival did not do what was asked; the message has the rival's output."""


@dataclass(frozen=True, slots=True)
class Training:
    """The training task: the same for every rival."""

    folder: Path
    """Folder of the logs and all other files of this run; the rival makes it."""
    model: str = "toy"
    step_seconds: float = 0.0
    largest: int = 3
    """Number of workers to which the job may grow."""
    script: Path = SCRIPT
    options: tuple[str, ...] = ()
    """Options of the script beyond those of all."""

    def command(self, *more: str) -> list[str]:
        """The training program's command line."""
        step = ["--step-seconds", str(self.step_seconds)] if self.step_seconds else []
        log_dir = str(self.folder / "logs")
        return [
            sys.executable,
            str(self.script),
            "--log-dir",
            log_dir,
            "--model",
            self.model,
            *step,
            *self.options,
            *more,
        ]


class Rival(Protocol):
    """One way to resize a training job. Its methods raise RivalFailed."""

    name: str
    by_rank: bool
    """True if a resize ends all processes and starts others."""

    def start(self, training: Training, size: int) -> None:
        """Begin to train with `size` workers. Returns at once."""

    def resize(self, size: int) -> float:
        """Resize to `size` workers. Returns the time of the request, in seconds since the epoch."""

    def stop(self) -> None:
        """End the training, so that nothing of it is left."""

    def said(self) -> str:
        """The rival's output so far."""


@dataclass
class Stock:
    """Elastic Horovod as it is: horovodrun, and a host discovery script that prints a file we rewrite."""

    name: str = "stock"
    by_rank: bool = False
    _run: _Horovodrun | None = None
    _hosts: Path = Path()

    def start(self, training: Training, size: int) -> None:
        """Begin to train. All slots are on localhost, so that no ssh is needed."""
        make(training.folder)
        self._hosts = training.folder / "hosts"
        self._name_hosts(size)
        script = training.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\nexec cat {self._hosts}\n")
        script.chmod(0o755)
        how = ["-np", str(size), "--min-np", "1", "--max-np", str(training.largest)]
        discover = ["--host-discovery-script", str(script), "--network-interfaces", "lo"]
        self._run = _Horovodrun([*how, *discover], training)

    def resize(self, size: int) -> float:
        """Rewrite the file, which the driver reads every second."""
        self._name_hosts(size)
        return time.time()

    def _name_hosts(self, size: int) -> None:
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text(f"localhost:{size}\n")
        fresh.rename(self._hosts)

    def stop(self) -> None:
        """Kill the training: its end is not measured."""
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
        """Begin to train with a fixed number of workers."""
        make(training.folder)
        self._training = training
        self._go(size)

    def _go(self, size: int) -> None:
        assert self._training is not None
        checkpoint = self._training.folder / "checkpoint.pt"
        how = ["--gloo", "-np", str(size), "-H", f"localhost:{size}"]
        self._run = _Horovodrun(how, self._training, "--checkpoint", str(checkpoint))

    def resize(self, size: int) -> float:
        """Tell the training to stop, wait until it has, and start it again with the new size."""
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
        """Kill the last run: its end is not measured."""
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
        """Wait until horovodrun has ended with code 0. Raises RivalFailed."""
        try:
            code = self._process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            raise RivalFailed(f"horovodrun does not end\n{self.said()}") from None
        if code != 0:
            raise RivalFailed(f"horovodrun ended with {code}\n{self.said()}")

    def kill(self) -> None:
        """Kill horovodrun and its workers, which have own sessions and are known by their log folder."""
        self._process.kill()
        self._process.wait()
        kill_marked(self._mark)

    def said(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]


@dataclass
class Flexo:
    """`flexo run` in a job of a real Slurm cluster; resized with `flexo scale`."""

    lab: Lab
    name: str
    core: str
    settings: tuple[str, ...] = ()
    """Variables for the job, as VARIABLE=value."""
    by_rank: bool = False
    _folder: Path = Path()
    _job_id: int = 0
    _runs: int = field(default=0)

    def start(self, training: Training, size: int) -> None:
        """Submit the job as a user would, then hold it at its minimum."""
        make(training.folder)
        self._folder = training.folder
        words, core = shlex.join(training.command()), f"--core={self.core}"
        here = Path(sys.executable).parent
        job = training.folder / "job.sbatch"
        trace = training.folder / "trace.jsonl"
        settings = [*native_horovod.exports(), f"FLEXO_TRACE={trace}", *self.settings]
        exports = "".join(f"export {setting}\n" for setting in settings)
        job.write_text(f"#!/bin/bash\n{exports}exec {shlex.quote(str(here))}/flexo run {core} {words}\n")
        ask = ["-n", str(size), "--gpus-per-task=1", f"--elastic={size}-{training.largest}"]
        answer = self.lab.run(
            ["sbatch", "--parsable", f"--output={training.folder}/output.txt", *ask, str(job)]
        )
        self._job_id = int(answer.stdout.split(";")[0])
        self.resize(size)

    def resize(self, size: int) -> float:
        """Scale the job, again until flexod knows the job and no other change is under way."""
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
        """Cancel the job, and wait until it and its satellites are gone."""
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


def kill_marked(mark: str) -> None:
    """Kill all processes with `mark` in their command line, such as a run's folder."""
    left = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.pid != os.getpid() and any(mark in word for word in process.cmdline())
    return False


def make(folder: Path) -> None:
    """Make an empty folder, with a folder for logs in it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)


@contextlib.contextmanager
def running(rival: Rival, training: Training, size: int) -> Iterator[WorkLog]:
    """`rival` training with `size` workers. Yields its logs, and ends the training in any case."""
    try:
        rival.start(training, size)
        yield WorkLog(training.folder / "logs")
    finally:
        rival.stop()


def wait_until_settled(rival: Rival, log: WorkLog, size: int, batches: int, after: float = 0.0) -> None:
    """Wait until `size` workers have each done `batches` mini-batches since `after`. Raises RivalFailed."""
    deadline = time.monotonic() + BOUND_S
    while not log.read().settled(size, batches, after):
        if time.monotonic() > deadline:
            raise RivalFailed(f"{rival.name} does not train with {size} workers\n{rival.said()}")
        time.sleep(POLL_S)


def interrupt_on_sigterm() -> None:
    """Turn SIGTERM into KeyboardInterrupt, so that the benchmark takes down what it started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
