"""Runs the workload on a lab of its own under one policy, and reads the course of each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from flexo_bench.fidelity.submitting import Submitted, submit, wait_for_ends
from flexo_bench.fidelity.workload import Job
from flexo_lab import Lab, LabSpec, bring_up

NODES, GPUS_PER_NODE = 3, 4
MIN_RESIZE_INTERVAL_S = 20.0
"""flexod's default is 60; the jobs are short, so that they are resized more often."""
NOTHING: Mapping[str, str] = MappingProxyType({})
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
    preemptions: int = 0
    """How often it lost its base, and began anew."""

    @property
    def jct_s(self) -> float:
        """Seconds from submission to completion."""
        return self.ended_at - self.submitted_at

    @property
    def resizes(self) -> int:
        """Number of changes of the job's size."""
        return max(0, len(self.sizes) - 1)


SPEC = LabSpec(nodes=NODES, gpus_per_node=GPUS_PER_NODE, infer_nodes=0)
RESIZES = {"min_resize_interval_s": str(MIN_RESIZE_INTERVAL_S)}


@contextmanager
def lab_with(
    policy: str,
    name: str,
    spec: LabSpec = SPEC,
    controller: Mapping[str, str] = RESIZES,
    loaning: Mapping[str, str] = NOTHING,
) -> Iterator[Lab]:
    """A fresh lab whose flexod runs `policy`, with an empty history. The lab ends with the context.

    `controller`, `loaning`: values of keys of these sections of flexo.toml.
    """
    lab = bring_up(replace(spec, name=name, flexod=False))
    try:
        toml = lab.layout.flexo_toml
        text = configured(toml.read_text(), "controller", {"policy": f'"{policy}"', **controller})
        toml.write_text(configured(text, "loaning", loaning))
        lab.start_flexod()
        yield lab
    finally:
        lab.down()


def configured(toml: str, section: str, settings: Mapping[str, str]) -> str:
    """The text of a flexo.toml, with these keys of a section replaced. It must have the section, if any."""
    if not settings:
        return toml
    lines, here, kept = toml.splitlines(), "", []
    for line in lines:
        here = line.strip() if line.startswith("[") else here
        if here != f"[{section}]" or line.partition("=")[0].strip() not in settings:
            kept.append(line)
    place = kept.index(f"[{section}]") + 1
    said = [f"{key} = {value}" for key, value in settings.items()]
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
    return tuple(life_of(job, submitted[0].at) for job in submitted)


def life_of(done: Submitted, zero: float) -> Life:
    """The course of a job that has ended. `zero`: the time of the first submission."""
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
        len(done.starts()) - 1,
    )
