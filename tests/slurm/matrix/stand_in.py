"""Elastic jobs whose workers train nothing: everything of flexo's and of Slurm's is real but PyTorch.

The worker is tests/unit/horovod_elastic/pretending_worker.py: a real session with the job's leader, and a
core that connects nobody. So no PyTorch has to be had for each Python; what Horovod does is tested elsewhere.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexo_bench.workers_logs import WorkersLogs
from flexo_lab import Lab

WORKER = Path(__file__).resolve().parents[2] / "unit" / "horovod_elastic" / "pretending_worker.py"
BOUND_S = 120.0
"""How long anything may take: the machine may be busy. Tests ask for order, not for speed."""
USER = "games"


def wait(what: Callable[[], object], sentence: str, bound_s: float = BOUND_S) -> None:
    """Until it is so; an assertion fails when it is not within the bound."""
    deadline = time.monotonic() + bound_s
    while not what():
        assert time.monotonic() < deadline, f"{sentence}: not within {bound_s:.0f} s"
        time.sleep(0.3)


def field(lab: Lab, job_id: int, name: str) -> str:
    """What scontrol says of a job under that name; "" for nothing."""
    shown = lab.run(["scontrol", "show", "job", str(job_id), "--oneliner"], check=False).stdout
    match = re.search(rf"(?:^|\s){name}=(\S*)", shown)
    return match[1] if match else ""


def state(lab: Lab, job_id: int) -> str:
    """PENDING, RUNNING, ..."""
    return field(lab, job_id, "JobState")


def submit(lab: Lab, *options: str, script: str = "exec sleep 600") -> int:
    """An ordinary job of USER."""
    command = ["sbatch", "--parsable", "--output=/dev/null", *options]
    return int(lab.run(command, user=USER, stdin=f"#!/bin/sh\n{script}\n").stdout.split(";")[0])


@dataclass(frozen=True)
class StandIn:
    """One elastic job of USER."""

    lab: Lab
    job_id: int
    folder: Path

    @classmethod
    def submitted(cls, lab: Lab, elastic: str, *options: str) -> StandIn:
        """With `-n 1 --gpus-per-task=1 --elastic=...`."""
        folder = lab.scratch / f"stand-in-{time.monotonic_ns()}"
        folder.mkdir()
        folder.chmod(0o777)
        asked = [
            "-n",
            "1",
            "--gpus-per-task=1",
            f"--elastic={elastic}",
            f"--output={folder}/%j.out",
            *options,
        ]
        run = shlex.join(["exec", "flexo", "run", "python", str(WORKER), str(folder)])
        script = f"#!/bin/sh\nexport FLEXO_TRACE={shlex.quote(str(folder))}/trace\n{run}\n"
        job_id = int(lab.run(["sbatch", "--parsable", *asked], user=USER, stdin=script).stdout)
        return cls(lab, job_id, folder)

    def output(self) -> str:
        """What it and its satellites have printed."""
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("*.out"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What its workers have logged, in order of time; whole lines only."""
        return WorkersLogs(self.folder).events(kind)

    def working(self) -> dict[int, str]:
        """Pid and node of the workers that trained a batch of the newest generation."""
        batches = self.events("batch")
        newest = max((event["generation"] for event in batches), default=-1)
        return {event["pid"]: event["node"] for event in batches if event["generation"] == newest}

    def wait_for_workers(self, count: int) -> None:
        """Until as many train together."""
        try:
            wait(lambda: len(self.working()) == count, f"{count} workers train")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.working()}\n{self.output()[-4000:]}") from None

    def satellites(self) -> dict[int, str]:
        """Slurm job id and node of those that Slurm runs."""
        listed = self.lab.run(
            ["squeue", "--noheader", f"--name=flexo-{self.job_id}", "--states=RUNNING", "--format=%A %N"]
        ).stdout
        return {int(number): node for number, node in map(str.split, listed.splitlines())}

    def finish(self) -> None:
        """Let its workers end: the job ends well, and its satellites with it."""
        (self.folder / "stop").touch()
        wait(lambda: state(self.lab, self.job_id) not in ("RUNNING", "COMPLETING"), "the job ends")
        assert state(self.lab, self.job_id) == "COMPLETED", self.output()[-4000:]
        wait(lambda: not self.satellites(), "its satellites end with it")
