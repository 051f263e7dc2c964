"""A workload: the jobs of a trace or a generator, as the simulator gets them."""

from __future__ import annotations

from dataclasses import dataclass

from flexo.model.ranges import Range
from flexo_protos.resources import Resources
from flexo_simulation.costs import Costs
from flexo_simulation.training import Training


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a workload. Times are seconds since the workload's beginning."""

    job_id: int
    """Unique in the workload, from 1, in the order of submission."""
    submitted_at: float
    workers: Range
    """The range of its number of workers; min == max: not elastic."""
    requested_workers: int
    """The number of workers in the trace."""
    shape: Resources
    training: Training
    user: str = ""
    tenant: str = ""
    application: str = ""
    model: str = ""
    """The model that it trains (`pairs.UTILIZATIONS`); "" or another name: its use of GPUs is not known."""
    time_limit_s: int | None = None
    batch: Range | None = None
    opportunistic: bool = False
    fungible: bool = False
    heterogeneous: bool = False
    declared_work: float | None = None
    """Work that the job declared at submission, in the unit of its speed; None: none."""
    costs: Costs | None = None
    """The job's own costs of starts and changes; None: those of the scenario."""
    line: int = 0
    """The number of its line in its file, from 1; 0: generated."""
    name: str = ""
    """The job's name in its file."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a trace that makes no sense, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Jobs of a trace that make sense, but have no place in a simulation."""

    why: str
    """The reason, which goes on after "jobs that ...", as in "ask for no GPU"."""
    jobs: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of submission, and what was left out of the file."""

    name: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[BadLine, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    """Further notes on its jobs, one sentence each."""
