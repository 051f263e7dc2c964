"""A coordinator with a pretended GPU, and real jobs that share it: what tests of processes have in
common.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from horovod_elastic.sharing import status
from horovod_elastic.sharing.status import Gpu, NoStatus

ROOT = Path(__file__).resolve().parents[4]
GPU = "cpu0"
SHARE = [sys.executable, "-m", "horovod_elastic.sharing.command"]
PATIENCE_S = 60.0
"""Machines are busy: a test waits this long for what takes a second."""

TRAIN = """
import os, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
name, seconds, idle_s, width, log = sys.argv[1:6]
seconds, idle_s, width = float(seconds), float(idle_s), int(width)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
inputs = torch.randn(32, width)
held = []
out = open(log, "a", buffering=1)

def tell(word):
    out.write(f"{word} {time.monotonic_ns()}\\n")

model.register_forward_pre_hook(lambda *_: tell("begin"))
for layer in model:
    layer.register_forward_hook(lambda *_: tell("op"))
end = time.monotonic() + seconds
while time.monotonic() < end:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    tell("last")
    optimizer.step()
    tell("step")
    for statement in sys.argv[6:]:
        exec(statement)
    if idle_s:
        time.sleep(idle_s)
out.write("done 0\\n")
"""
"""A training script. Arguments: name, seconds, seconds without work after each step, width, log,
statements.

The statements run after each step."""


@dataclass
class Job:
    """A job that was started, and what its script has logged."""

    process: subprocess.Popen[str]
    log: Path
    errors: Path

    def said(self) -> str:
        """What it said on its error output."""
        return self.errors.read_text()

    def lines(self, word: str) -> list[int]:
        """Nanoseconds of all lines that begin with a word."""
        told = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[1]) for line in told if line.startswith(word) and len(line.split()) == 2]

    @property
    def steps(self) -> int:
        """How many steps it has taken."""
        return len(self.lines("step"))

    def kill(self) -> None:
        """Kill it with all that it started, if it still runs."""
        if self.process.poll() is None:  # the number of one that has ended may be another process's
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class World:
    """One folder with its coordinator."""

    folder: Path
    memory_gib: float = 1.0
    jobs: list[Job] = field(default_factory=list)
    coordinator: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """The environment of everything that starts here."""
        path = os.pathsep.join(map(str, (ROOT / "daemon", ROOT, ROOT / "protos")))
        return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def start_coordinator(self) -> None:
        """Start a coordinator, and wait until it has a status."""
        command = [
            *SHARE,
            "coordinator",
            "--folder",
            str(self.folder),
            "--pretend",
            f"{GPU}:{self.memory_gib}",
        ]
        before = time.time()
        self.coordinator = subprocess.Popen(command, env=self.environment(), text=True)
        self.wait(lambda: self.node_time() > before)

    def kill_coordinator(self) -> None:
        """Kill it, as by kill -9."""
        assert self.coordinator is not None
        self.coordinator.kill()
        self.coordinator.wait()

    def node_time(self) -> float:
        """When the status was written last."""
        try:
            return status.read(self.folder).updated_at
        except NoStatus:
            return 0.0

    def gpu(self) -> Gpu:
        """The GPU's status."""
        gpu = status.read(self.folder).gpu(GPU)
        assert gpu is not None
        return gpu

    def start(
        self, role: str, *statements: str, seconds: float = 300, idle_s: float = 0.0, width: int = 64
    ) -> Job:
        """Start the training script in a role."""
        log = self.folder / f"{role}-{len(self.jobs)}.log"
        script = [
            sys.executable,
            "-c",
            TRAIN,
            role,
            str(seconds),
            str(idle_s),
            str(width),
            str(log),
            *statements,
        ]
        return self.start_command(role, script, log)

    def start_command(self, role: str, command: Sequence[str], log: Path | None = None) -> Job:
        """Start any command in a role; "" is a plain process beside them."""
        share = (
            [*SHARE, role, "--gpu", GPU, "--folder", str(self.folder), "--job", role, "--"] if role else []
        )
        errors = self.folder / f"errors-{len(self.jobs)}"
        with errors.open("w") as file:
            process = subprocess.Popen(
                [*share, *command], env=self.environment(), text=True, start_new_session=True, stderr=file
            )
        job = Job(process, log or self.folder / "none.log", errors)
        self.jobs.append(job)
        return job

    def wait(self, condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not condition():
            said = "".join(job.said() for job in self.jobs)
            assert time.monotonic() < end, f"in vain for {seconds} s in {self.folder}: {said}"
            time.sleep(0.05)

    def _members(self) -> list[psutil.Process]:
        """What uses the GPU. The status may be old, and its numbers other processes' by now."""
        found = []
        for gpu in status.read(self.folder).gpus if self.node_time() else ():
            for member in filter(None, (gpu.guarantee, gpu.opportunistic, *gpu.waiting)):
                with suppress(psutil.Error):
                    process = psutil.Process(member.pid)
                    found += [process] if str(self.folder) in " ".join(process.cmdline()) else []
        return found

    def end(self) -> None:
        """Kill everything."""
        for process in self._members():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for job in self.jobs:
            job.kill()
        if self.coordinator is not None and self.coordinator.poll() is None:
            self.kill_coordinator()


@contextmanager
def world(folder: Path, memory_gib: float = 1.0) -> Iterator[World]:
    """A world with a coordinator; everything is gone at its end."""
    made = World(folder, memory_gib)
    try:
        made.start_coordinator()
        yield made
    finally:
        made.end()
