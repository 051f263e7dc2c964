"""Runs a script with torchrun, or as an elastic job that grows, shrinks and loses a worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalogue import Script
from judgement import Step, steps_in

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "training"))

from local_job import LocalJob, job_of, train_at  # noqa: E402

PACKAGES = HERE.parents[1] / ".venv" / "torch-matrix"
"""What the scripts import, besides PyTorch (setup.sh torch-matrix)."""
WORKERS = 2
"""Of a run at a fixed size, and of the elastic job's base."""
PACE_S = 0.7
"""What each step of the elastic run takes longer, until all changes have happened."""
MANY_PACE_S = 0.3
"""The same, of a run with many resizes."""
DEATH_EVERY = 20
BOUND_S = 900.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a script's source lies, and where it runs."""

    source: Path
    work: Path
    log: Path

    def command(self, script: Script) -> list[str]:
        """What is run in `work`, without a launcher."""
        return [sys.executable, str(self.source / script.path), *script.arguments.split()]

    def longer_command(self, script: Script) -> list[str]:
        """The same, which trains for hours."""
        return [*self.command(script), *script.longer.split()]

    def variables(self, script: Script, seed: int) -> dict[str, str]:
        """The environment of the script, besides this process's own."""
        path = (HERE / "observer", self.source, PACKAGES)
        given = dict(each.split("=", 1) for each in script.environment)
        return {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "OBSERVER_LOG": str(self.log),
            "OBSERVER_SEED": str(1000 * seed),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.work / "huggingface"),
            "TOKENIZERS_PARALLELISM": "false",
            **given,
        }


def prepare(script: Script, source: Path, material: Path, folder: Path) -> Place:
    """A folder in which the script can run, with its data. Empty before."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "job").mkdir(parents=True)
    if not material.exists():
        command = [sys.executable, str(HERE / "material.py"), script.material, str(material)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(PACKAGES)}, check=True)
    work = folder / "work"
    shutil.copytree(material, Path(os.path.normpath(work / script.data_here)))
    work.mkdir(exist_ok=True)
    if script.data:
        wanted = Path(os.path.normpath(source / script.data))
        wanted.mkdir(parents=True, exist_ok=True)
        for each in material.iterdir():
            if not (wanted / each.name).exists():
                (wanted / each.name).symlink_to(each.absolute())
    log = folder / "logs"
    log.mkdir()
    return Place(source, work, log)


def at_fixed_size(script: Script, source: Path, material: Path, folder: Path, seed: int) -> Sequence[Step]:
    """All steps of a run with torchrun, maybe of an earlier one. Raises AssertionError if it fails."""
    finished = folder / "finished"
    made_by = f"{script}\n{(HERE / 'observer' / 'sitecustomize.py').read_text()}"
    if not finished.exists() or finished.read_text() != made_by:
        _run_at_fixed_size(script, prepare(script, source, material, folder), seed)
        finished.write_text(made_by)
    return steps_in(folder / "logs")


def _run_at_fixed_size(script: Script, place: Place, seed: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = place.command(script)
    launcher = [
        command[0],
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={WORKERS}",
        f"--master-port={port}",
    ]
    with (place.work / "output").open("w") as output:
        done = subprocess.run(
            [*launcher, *command[1:]],
            cwd=place.work, env={**os.environ, **place.variables(script, seed)},
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=BOUND_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, (place.work / "output").read_text(errors="replace")[-6000:]


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """What an elastic run has left."""

    steps: Sequence[Step]
    killed: int
    """The process id of the worker that was killed."""
    resizes: int


def elastic(script: Script, place: Place, changes: int) -> ElasticRun:
    """A run that grows and shrinks `changes` times and loses a worker. Raises AssertionError if it fails.

    A script that keeps its size gets one satellite, says why it does not grow, and trains to its end.
    """
    (place.log / "pace").write_text(str(PACE_S))
    with _job(script, place, place.command(script)) as job:
        train_at(job, WORKERS, bound_s=BOUND_S)
        killed = 0
        if script.keeps_size:
            job.start("n0", 1)
            job.wait_until("the reason", lambda: f"keeps its size: {script.keeps_size}" in job.output())
        else:
            killed = _go_through(job, place.log, changes)
        (place.log / "pace").unlink()
        code = job.wait(BOUND_S)
        assert code == 0, job.output()[-6000:]
    steps = steps_in(place.log)
    return ElasticRun(steps, killed, len({each.world for each in steps}) - 1)


def many_resizes(script: Script, place: Place, changes: int) -> int:
    """Have the script train until it has grown and shrunk `changes` times; the number of resizes.

    It loses a worker each `DEATH_EVERY` changes. Raises AssertionError if a change takes longer than BOUND_S.
    """
    (place.log / "pace").write_text(str(MANY_PACE_S))
    with _job(script, place, place.longer_command(script)) as job:
        train_at(job, WORKERS, bound_s=BOUND_S)
        for first in range(0, changes, DEATH_EVERY):
            _go_through(job, place.log, min(DEATH_EVERY, changes - first), first)
    return len({each.world for each in steps_in(place.log)}) - 1


@contextlib.contextmanager
def _job(script: Script, place: Place, command: list[str]) -> Iterator[LocalJob]:
    folder = place.work.parent / "job"
    shutil.rmtree(folder)
    variables = place.variables(script, 0)
    with job_of(folder, command, work=place.work, **variables) as job:
        shutil.rmtree(folder / "logs")
        (folder / "logs").symlink_to(place.log)
        yield job


def _go_through(job: LocalJob, log: Path, changes: int, first: int = 0) -> int:
    """Grow and shrink `changes` times, and lose a worker half-way; its process id.

    `first`: the number of changes that this job has been through before.
    """
    killed = 0
    for change in range(changes):
        job.start(f"n{first + change}", 1)
        train_at(job, WORKERS + 1, bound_s=BOUND_S)
        if change == changes // 2:
            killed = _kill_one(job, log)
        job.send_away(f"n{first + change}")
        train_at(job, WORKERS, bound_s=BOUND_S)
    return killed


def _kill_one(job: LocalJob, log: Path) -> int:
    """Kill the worker of rank 1, and wait until another has come in its place."""
    steps = steps_in(log)
    world = max(each.world for each in steps)
    victim = next(each.pid for each in steps if each.world == world and each.rank == 1)
    os.kill(victim, signal.SIGKILL)
    train_at(job, WORKERS + 1, world, BOUND_S)
    return victim
