"""Runs the workload on a lab of its own under one policy, and reads the course of each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flexo_bench.fidelity.submitting import Submitted, submit, wait_for_ends
from flexo_bench.fidelity.workload import Job
from flexo_lab import Lab, LabSpec, bring_up

NODES, GPUS_PER_NODE = 3, 4
MIN_RESIZE_INTERVAL_S = 20.0
"""flexod's default is 60; the jobs are short, so that they are resized more often."""
LIMIT_S = 1200.0
"""Time limit for all jobs to end after the last submission."""


@dataclass(frozen=True, slots=True)
class Life:
    """The course of one job. Times are seconds since the first submission."""

    job: Job
    submitted_at: float
    began_at: float
    """Begin of the job's batch script."""
    ended_at: float
    sizes: tuple[tuple[float, int], ...]
    """Pairs (time, number of workers that train from then on), beginning with the base's workers."""

    @property
    def jct_s(self) -> float:
        """Seconds from submission to completion."""
        return self.ended_at - self.submitted_at

    @property
    def resizes(self) -> int:
        """Number of changes of the job's size."""
        return max(0, len(self.sizes) - 1)


@contextmanager
def lab_with(policy: str, name: str) -> Iterator[Lab]:
    """A fresh lab whose flexod runs `policy`, with an empty history. The lab ends with the context."""
    lab = bring_up(LabSpec(name=name, nodes=NODES, gpus_per_node=GPUS_PER_NODE, infer_nodes=0, flexod=False))
    try:
        toml = lab.layout.flexo_toml
        toml.write_text(_configured(toml.read_text(), policy))
        lab.start_flexod()
        yield lab
    finally:
        lab.down()


def _configured(toml: str, policy: str) -> str:
    """The lab's flexo.toml with the policy and the resize interval replaced."""
    settings = {"policy": f'"{policy}"', "min_resize_interval_s": str(MIN_RESIZE_INTERVAL_S)}
    kept = [line for line in toml.splitlines() if line.partition("=")[0].strip() not in settings]
    said = [f"{key} = {value}" for key, value in settings.items()]
    place = kept.index("[controller]") + 1
    return "\n".join([*kept[:place], *said, *kept[place:]]) + "\n"


def run(lab: Lab, jobs: tuple[Job, ...], folder: Path, tell: Callable[[str], None]) -> tuple[Life, ...]:
    """Submit all jobs at their times, and wait until all have ended. Raises LabRunFailed."""
    began = time.time()
    submitted = []
    for job in jobs:
        time.sleep(max(0.0, began + job.at_s - time.time()))
        submitted.append(submit(lab, job, folder / str(job.number)))
    tell(f"all {len(jobs)} jobs are submitted")
    wait_for_ends(submitted, LIMIT_S)
    return tuple(_life(job, submitted[0].at) for job in submitted)


def _life(done: Submitted, zero: float) -> Life:
    began_at, ended_at = done.began_at(), done.ended_at()
    assert began_at is not None
    assert ended_at is not None
    changes = done.log().sizes[1:] if done.job.elastic else ()
    sizes = ((began_at, done.job.least), *changes)
    return Life(
        done.job,
        done.at - zero,
        began_at - zero,
        ended_at - zero,
        tuple((at - zero, size) for at, size in sizes),
    )
