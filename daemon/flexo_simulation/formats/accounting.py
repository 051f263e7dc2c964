"""What a cluster's accounting tells of GPU jobs: their runs, and how the cluster schedules by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import HELD_NONE, NO_GPUS, in_order
from flexo_simulation.workload import BadLine, LeftOut, TraceJob, Workload


@dataclass(frozen=True, slots=True)
class Software:
    """The software whose accounting it is, and what comes near to how it schedules."""

    name: str
    baseline: str
    """The policy that comes nearest to its own scheduling."""
    baseline_words: str
    """Its own scheduling, as that policy does it."""
    unknown: str
    """What its accounting does not have, or the simulation does not know."""
    counts_gpus: str
    """Where it counts GPUs at all."""
    gpus_known: str
    """How the dump tells the GPUs of a job."""


SLURM: Final = Software(
    name="Slurm",
    baseline="backfill",
    baseline_words="as Slurm does (backfill)",
    unknown=(
        "priorities and fair share, limits of users and QOS, reservations, nodes that were down, licences, "
        "memory and CPUs, who asked for which node, jobs that were cancelled while they waited"
    ),
    counts_gpus="Slurm counts GPUs only where AccountingStorageTRES in slurm.conf has gres/gpu",
    gpus_known=(
        "jobs run as long as in the dump, with as many GPUs as there; what Slurm does goes by time limits"
    ),
)
YARN: Final = Software(
    name="YARN",
    baseline="fifo",
    baseline_words="as YARN does (fifo)",
    unknown=(
        "queues with their capacities and preemption, limits of users, priorities, node labels, nodes that "
        "were down, memory and CPUs, jobs that began with some of their GPUs, jobs that were killed while "
        "they waited"
    ),
    counts_gpus="YARN counts GPUs only where resource-types.xml has yarn.io/gpu",
    gpus_known=(
        "YARN tells a job's GPU-seconds, not its GPUs: a job is taken to have held its average number, "
        "rounded up, without a break until its end, and to have waited before"
    ),
)


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """One run of one job, as it really was. Times are seconds since the epoch (or since any other one
    time)."""

    line: int
    """Its place in the dump, from 1."""
    job_id: str
    """The identifier in the accounting. Slurm: 123, or 123_4 of an array; 123 for all components of a
    heterogeneous job together."""
    cluster: str
    user: str
    account: str
    """Slurm's account; YARN's queue."""
    partition: str
    """Slurm's partition; YARN's queue."""
    job_name: str
    ready_at: float
    """Time when the run could have started: submitted and eligible, and after the job's run before had
    ended."""
    started_at: float
    elapsed_s: float
    gpus: int
    gpu_type: str
    """The type of the GPUs; "": not stated, or several types."""
    nodes: int
    """Number of nodes; 0: not stated."""
    time_limit_s: int | None
    running: bool
    """Whether the run had not ended when the dump was made; `elapsed_s` counts until then."""
    node_names: tuple[str, ...] = ()
    """The names of its nodes; (): not stated."""

    @property
    def ended_at(self) -> float:
        """Time when the run ended, or the dump was made."""
        return self.started_at + self.elapsed_s

    @property
    def waited_s(self) -> float:
        """Seconds that the run really waited."""
        return self.started_at - self.ready_at


@dataclass(frozen=True, slots=True)
class Holders:
    """The runs by which nodes were in use. Each component of a heterogeneous job is a run of its own."""

    chosen: tuple[AccountedRun, ...]
    others: tuple[AccountedRun, ...]
    """Runs in partitions that were not chosen: they may have had GPUs of the same nodes."""
    named: bool
    """Whether the dump has a place for the names of nodes."""


@dataclass(frozen=True, slots=True)
class AccountingDump:
    """The runs in a dump, in the order in which they could have started, and the lines and jobs left out."""

    software: Software
    name: str
    runs: tuple[AccountedRun, ...]
    skipped: tuple[BadLine, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    nodes: tuple[NodeGroup, ...] = ()
    """The cluster's nodes with GPUs; (): the dump does not have them."""
    holders: Holders | None = None
    """None: the software tells nobody which nodes a job had."""


def note(jobs: int, what: str) -> tuple[str, ...]:
    """The note that there are so many of `what`, unless there is none."""
    return (f"{what}: {jobs:,}",) if jobs else ()


def workload_of(dump: AccountingDump) -> Workload:
    """The workload of the dump's runs, none elastic yet. Raises BadTrace if there is none."""
    if not dump.runs:
        reasons = ", ".join(f"{each.jobs} {each.why}" for each in dump.left_out)
        none_counted = any(each.why in (NO_GPUS, HELD_NONE) for each in dump.left_out)
        hint = f"; {dump.software.counts_gpus}" if none_counted else ""
        why = f"of its jobs, {reasons}{hint}" if reasons else "it has no line of a job"
        raise BadTrace((f"{dump.name}: holds no run of a GPU job: {why}",))
    return Workload(dump.name, in_order(map(_job, dump.runs)), dump.skipped, dump.left_out, dump.notes)


def _job(run: AccountedRun) -> TraceJob:
    job = linear_job(
        submitted_at=run.ready_at,
        gpus=run.gpus,
        duration_s=run.elapsed_s,
        line=run.line,
        name=run.job_id,
        user=run.user,
        tenant=run.account,
        application=run.job_name,
        gpu_type=run.gpu_type,
    )
    return replace(job, time_limit_s=run.time_limit_s)
