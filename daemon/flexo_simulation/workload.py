"""A workload: the jobs of a trace or a generator, as the simulator takes them up."""

from __future__ import annotations

from dataclasses import dataclass

from flexo.model.ranges import Range
from flexo_protos.resources import Resources
from flexo_simulation.training import Training


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a workload. Times are seconds since the workload's beginning."""

    job_id: int
    """Unique in the workload, from 1, in the order of submission."""
    submitted_at: float
    workers: Range
    """min == max: not elastic."""
    requested_workers: int
    """As the trace has it."""
    shape: Resources
    training: Training
    user: str = ""
    tenant: str = ""
    application: str = ""
    time_limit_s: int | None = None
    batch: Range | None = None
    opportunistic: bool = False
    fungible: bool = False
    heterogeneous: bool = False
    declared_work: float | None = None
    """What it says of itself when it is submitted, in the unit of its speed; None: nothing."""
    line: int = 0
    """Where it stands in its file, from 1; 0: generated."""
    name: str = ""
    """What its file calls it."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a trace that makes no sense, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Jobs of a trace that make sense, but have no place in a simulation."""

    why: str
    """Goes on after "jobs that ...", as in "ask for no GPU"."""
    jobs: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of submission, and what was left out of the file."""

    name: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[BadLine, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    """What else is to be said of its jobs, one sentence each."""
