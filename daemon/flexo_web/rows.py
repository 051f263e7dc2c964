"""Rows of the pages' tables, and the strips of nodes: frozen facts without markup."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flexo_cli import job_words
from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.explained import Because, Explained
from flexo_web.privacy import Privacy


@dataclass(frozen=True, slots=True)
class NodeStrip:
    """The GPUs of a node. The numbers add up to all of them, unless the node is unusable."""

    name: str
    gpu_type: str
    used: int
    in_satellites: int
    idle: int
    unusable: str
    """Why nothing may be placed there; "" when it may."""
    loan: str
    """The state of its loan to training; "": it is not on loan."""
    event: int
    """The number of the event that says why it is unusable; 0: none is known."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The kind of each GPU, for its picture."""
        kinds = (("used", self.used), ("satellite", self.in_satellites))
        rest = "unusable" if self.unusable else "idle"
        return tuple(kind for kind, count in (*kinds, (rest, self.idle)) for _ in range(count))


@dataclass(frozen=True, slots=True)
class JobRow:
    """A running elastic job in a table."""

    job_id: int
    name: str
    """The job's id: ``17``, or ``17.r1`` after a restart."""
    called: str
    """The name that its user chose."""
    user: str
    account: str
    workers: int
    granted: int
    range: str
    cap: int
    """0: none."""
    state: str
    done: str
    left: str
    resized: int
    """The number of the event that gave it this size; 0: none is known."""
    reason: Because
    """Why it has no more. Without text: nothing keeps it from growing, or flexod has no reason."""
    where: str


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A pending elastic job in a table."""

    job_id: int
    called: str
    """The name that its user chose."""
    user: str
    account: str
    partition: str
    range: str
    least: int
    reason: Because
    """What it waits for, with the cluster's own word for that."""
    place: int
    """In the policy's order, or by the cluster's priorities, from 1; 0: it waits for something else."""
    ordered: int
    """The number of the event that gave it this place; 0: none is known."""
    submitted_at: float
    starts_at: float
    """0: the cluster has planned no start."""


def strips_of(picture: Picture, privacy: Privacy) -> list[NodeStrip]:
    """The nodes that have GPUs. `privacy`: what the viewer may see of `picture`."""
    taken: Counter[str] = Counter()
    for job in picture.jobs.jobs:
        for grant in job.grants:
            taken[grant.node] += grant.workers * job.gpus_per_worker
    lent = {loan.node: loan.state for loan in picture.loans.loans}
    return [
        _strip(node, taken[node.name], lent.get(node.name, ""), privacy.without_jobs(node.unusable))
        for node in picture.nodes.nodes
        if node.gpus and not privacy.hides_nodes
    ]


def _strip(node: admin_pb2.NodeView, taken: int, loan: str, unusable: str) -> NodeStrip:
    allocated = min(node.gpus, node.gpus_allocated)
    in_satellites = min(allocated, taken)
    return NodeStrip(
        name=node.name,
        gpu_type=node.gpu_type,
        used=allocated - in_satellites,
        in_satellites=in_satellites,
        idle=node.gpus - allocated,
        unusable=unusable,
        loan=loan,
        event=node.idle_event if unusable == node.unusable else 0,
    )


def row_of(job: admin_pb2.ElasticJob, explained: Explained) -> JobRow:
    """The row of a running job."""
    return JobRow(
        job_id=job.job_id,
        name=job_words.job_name(job),
        called=job.name,
        user=job.user,
        account=job.account,
        workers=job.workers,
        granted=job.granted,
        range=f"{job.min}-{job.max}",
        cap=job.wanted,
        state=job_words.job_state(job),
        done=f"{job.progress:.0%}" if job.progress else "",
        left=job_words.left(job),
        resized=explained.size(job.job_id, job.restart_count),
        reason=explained.of_job(job),
        where=job_words.nodes(job),
    )


def waiting_of(job: admin_pb2.WaitingJob, explained: Explained, reason: str = "") -> WaitingRow:
    """The row of a pending job. `reason`: flexod's own for it, which says more; "": not known."""
    waits = f"{job.waits_for} ({job.reason})" if job.waits_for else job.reason
    return WaitingRow(
        job_id=job.job_id,
        called=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        range=f"{job.min}-{job.max}",
        least=job.min,
        reason=Because(reason or waits, job.reason_event),
        place=job.place,
        ordered=explained.place(job.job_id) if job.place else 0,
        submitted_at=job.submitted_at,
        starts_at=job.starts_at,
    )
