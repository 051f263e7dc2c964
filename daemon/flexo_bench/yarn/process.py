"""What a job's own process costs on YARN, beside the same job's on Slurm: memory, and CPU time.

On YARN it is the ApplicationMaster, on Slurm `flexo run`. Agents and their supervisors are counted apart.
"""

from __future__ import annotations

import enum
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flexo_bench.fidelity.submitting import SCRIPT, wait_for
from flexo_bench.yarn.elastic_job import BASE_WORKERS, ElasticJob, training_command, trains_with
from flexo_lab import LabSpec, bring_up
from flexo_lab.yarn import YarnLabSpec, bring_up_yarn
from flexo_yarn.resource_manager import ResourceManager

Tell = Callable[[str], None]
NODES, GPUS = 2, 2
"""Of both clusters: half of the GPUs are the base's."""
_SETTLED_S = 15.0
_LIMIT_S = 180.0
_MIB = 2**20


class Role(enum.StrEnum):
    """What a process of a job is."""

    MASTER = "master"
    AGENT = "agent"
    SUPERVISOR = "supervisor"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Cost:
    """What the processes of one role cost together."""

    role: Role
    processes: int
    rss_mib: float
    pss_mib: float
    """Resident memory, with pages that several processes share divided among them."""
    cpu: float
    """The part of one core that they use."""


@dataclass(frozen=True, slots=True)
class Costs:
    """A job with satellites on both clusters, with the same number of workers."""

    workers: int
    seconds: float
    yarn: tuple[Cost, ...]
    slurm: tuple[Cost, ...]


def measure(seconds: float, folder: Path, tell: Tell) -> Costs:
    """Watch the job for so long on each of the two. Raises LabError, LabRunFailed."""
    found = []
    for name, place in (("YARN", _on_yarn), ("Slurm", _on_slurm)):
        own = folder / name.lower()
        own.mkdir()
        with place(own):
            what = f"{NODES * GPUS} workers on {name}"
            wait_for(what, _LIMIT_S, lambda own=own: trains_with(own, NODES * GPUS))  # type: ignore[misc]
            time.sleep(_SETTLED_S)
            tell(f"{what}: watching for {seconds:.0f} s")
            found.append(_watch(own, seconds))
    return Costs(NODES * GPUS, seconds, *found)


@contextmanager
def _on_yarn(folder: Path) -> Iterator[None]:
    lab = bring_up_yarn(YarnLabSpec(name=f"cost{os.getpid()}", nodes=NODES, gpus_per_node=GPUS))
    client = ResourceManager(lab.clients, user="root")
    try:
        ElasticJob.submit(lab, client, NODES * GPUS, folder)
        yield
    finally:
        client.close()
        lab.down()


@contextmanager
def _on_slurm(folder: Path) -> Iterator[None]:
    lab = bring_up(LabSpec(name=f"cost{os.getpid()}", nodes=NODES, gpus_per_node=GPUS, infer_nodes=0))
    try:
        ask = ["-n", str(BASE_WORKERS), "--gpus-per-task=1", f"--elastic={BASE_WORKERS}-{NODES * GPUS}"]
        command = shlex.join(training_command(folder))
        script = f"#!/bin/sh\nexec flexo run --core=torch {command}\n"
        lab.run(["sbatch", f"--output={folder}/output", *ask], stdin=script)
        yield
    finally:
        lab.down()


def _watch(folder: Path, seconds: float) -> tuple[Cost, ...]:
    before = list(_processes(folder))
    spent = {process.pid: _cpu_s(process) for _, process in before}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return tuple(
        _cost(role, [process for each, process in before if each is role], spent, elapsed) for role in Role
    )


def _cost(role: Role, processes: Sequence[psutil.Process], spent: dict[int, float], elapsed: float) -> Cost:
    memory = [process.memory_full_info() for process in processes]
    return Cost(
        role,
        len(processes),
        sum(each.rss for each in memory) / _MIB,
        sum(each.pss for each in memory) / _MIB,
        sum(_cpu_s(process) - spent[process.pid] for process in processes) / elapsed,
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _processes(folder: Path) -> Iterator[tuple[Role, psutil.Process]]:
    """The processes of the job whose workers log to this folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if (role := _role(words)) is not None and str(folder) in " ".join(words):
                yield role, process


def _role(words: Sequence[str]) -> Role | None:
    """The role of a process with this command line; None: none of a job's, such as a shell."""
    if len(words) < 2 or not Path(words[0]).name.startswith("python"):
        return None
    if words[1] == str(SCRIPT):
        return Role.WORKER
    if "horovod_elastic.application_master" in words[:4]:
        return Role.MASTER
    if Path(words[1]).name == "flexo" and words[2:3] == ["run"]:
        return Role.MASTER
    if words[1:4] == ["-m", "horovod_elastic", "agent"]:
        return Role.AGENT
    if any(Path(word).name == "supervisor.py" for word in words[1:5]):
        return Role.SUPERVISOR
    return None
