"""The jobs in the queue: elastic jobs that run, ordinary ones that hold most nodes, thousands that wait."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flexo_lab.lab import Lab

WORKERS = "2-16"
"""Range of an elastic job's workers, each with one GPU."""
IDLE_PART = 0.03
"""Part of the nodes that ordinary jobs leave to elastic ones."""
_NODES_OF_A_LARGE_JOB = 4
_AT_ONCE = 3
_STARTS_WITHIN_S = 900.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Base:
    """An elastic job that runs."""

    job_id: int
    node: str
    started_at: float
    """Time of the start, in seconds since the epoch."""


def fill(lab: Lab, nodes: int, jobs: int, elastic: int, tell: Tell) -> list[Base]:
    """Submit `jobs` jobs, `elastic` of them elastic. Returns the elastic ones, which run by then."""
    least, _, _ = WORKERS.partition("-")
    hosts = -(-elastic * int(least) // 8)
    large = max(0, int((nodes - hosts) * (1 - IDLE_PART)) // _NODES_OF_A_LARGE_JOB)
    tell(f"submitting {elastic} elastic jobs")
    _submit(lab, elastic, ["-n", least, "--gpus-per-task=1", f"--elastic={WORKERS}", "--job-name=elastic"])
    bases = _wait_for_bases(lab, elastic)
    waiting = jobs - elastic - large
    tell(f"submitting {large} jobs of {_NODES_OF_A_LARGE_JOB} nodes, and {waiting} that wait")
    _submit(lab, large, ["-N", str(_NODES_OF_A_LARGE_JOB), "--gpus-per-node=8", "--exclusive"])
    # These jobs need more than the idle nodes, so that none starts during a measurement.
    _submit(lab, waiting, ["-N", str(max(8, nodes // 4)), "--gpus-per-node=8", "--time=2:00:00"])
    return bases


def _submit(lab: Lab, count: int, options: Sequence[str]) -> None:
    """Submit each job with an sbatch of its own, as users do, without waiting for its start."""
    command = ["sbatch", "-Q", "--output=/dev/null", *options, "--wrap", "exec sleep 86400"]
    environment = lab.environment()

    def one(_: int) -> None:
        subprocess.run(
            command, env=environment, cwd=lab.scratch, check=True, capture_output=True, timeout=300
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, range(count)))


def _wait_for_bases(lab: Lab, count: int) -> list[Base]:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    query = ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--name=elastic", "--states=RUNNING"]
    query.append("--format=%A|%B|%S")
    while len(rows := lab.run(query, timeout=120).stdout.split()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(rows)} of {count} elastic jobs have started")
        time.sleep(5)
    pairs = [row.split("|") for row in rows]
    return [Base(int(number), node, float(start)) for number, node, start in pairs]
