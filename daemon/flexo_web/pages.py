"""What each page says, made of a snapshot of flexod: frozen facts without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flexo_cli import job_words
from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.chart import Chart, chart_of
from flexo_web.explanations import Explained
from flexo_web.sizes import LEAVING, sizes_of

MOST_ROWS: Final = 500
"""The most jobs in a table: more of them make no page that anybody reads, but one that is slow."""
MOST_NODES: Final = 2000
_INTEREST: Final = {"resizing": 0, "no leader": 1, "suspended": 1, "paused": 1, "starting": 2, "training": 4}


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
    user: str
    workers: int
    granted: int
    range: str
    cap: int
    """0: none."""
    state: str
    done: str
    left: str
    reason: str
    """Why it has no more; "": nothing keeps it from growing, or flexod has no reason."""
    where: str


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A pending elastic job in a table."""

    job_id: int
    user: str
    range: str
    least: int
    reason: str
    """What it waits for, with the cluster's own word for that."""
    place: int
    """In the policy's order, from 1; 0: the cluster alone decides."""
    submitted_at: float
    starts_at: float
    """0: the cluster has planned no start."""


@dataclass(frozen=True, slots=True)
class Now:
    """The page of the whole cluster."""

    software: str
    policy: str
    gpus: int
    gpus_idle: int
    gpus_in_satellites: int
    nodes: tuple[NodeStrip, ...]
    nodes_left_out: int
    jobs: tuple[JobRow, ...]
    jobs_left_out: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Mine:
    """The page of the viewer's jobs, and of all that wait."""

    running: tuple[JobRow, ...]
    own_waiting: tuple[WaitingRow, ...]
    others_waiting: tuple[WaitingRow, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of a job's. `before` and `after`: granted workers; None: it changes nothing there."""

    anchor: str
    at: float
    kind: str
    text: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """The page of one job, running, waiting or ended."""

    job_id: int
    row: JobRow | None
    """None: it does not run."""
    why: tuple[str, ...]
    ended_at: float
    """0: it has not ended, or nobody knows when."""
    chart: Chart | None
    least: int
    most: int
    happenings: tuple[Happening, ...]
    """Newest first."""
    speeds: tuple[admin_pb2.ScalingPoint, ...]
    unknown: str = ""
    """Why there is nothing to show; "": there is."""


def now_page(picture: Picture) -> Now:
    """The page of the whole cluster."""
    status = picture.status
    strips = _strips(picture)
    jobs = sorted(picture.jobs.jobs, key=_interest)
    software = f"{status.software or 'Slurm'} {status.slurm_version}"
    return Now(
        software=f"{status.cluster}, {software}" if status.cluster else "not known yet",
        policy=status.policy + (" (dry run: decides, changes nothing)" if status.dry_run else ""),
        gpus=status.gpus,
        gpus_idle=status.gpus_idle,
        gpus_in_satellites=status.gpus_in_satellites,
        nodes=tuple(strips[:MOST_NODES]),
        nodes_left_out=max(0, len(strips) - MOST_NODES),
        jobs=tuple(map(_row, jobs[:MOST_ROWS])),
        jobs_left_out=max(0, len(jobs) - MOST_ROWS),
        waiting=len(picture.jobs.waiting),
    )


def mine_page(picture: Picture, user: str) -> Mine:
    """The jobs of `user`, and all that wait: those with a place in the policy's order come first, by it."""
    places = {job_id: place for place, job_id in enumerate(picture.nodes.order, start=1)}
    waiting = sorted(
        (_waiting(job, places) for job in picture.jobs.waiting),
        key=lambda row: (row.place or float("inf"), row.submitted_at, row.job_id),
    )
    running = [_row(job) for job in picture.jobs.jobs if job.user == user]
    own = [row for row in waiting if row.user == user]
    others = [row for row in waiting if row.user != user]
    return Mine(
        running=tuple(running[:MOST_ROWS]),
        own_waiting=tuple(own[:MOST_ROWS]),
        others_waiting=tuple(others[:MOST_ROWS]),
        left_out=sum(max(0, len(rows) - MOST_ROWS) for rows in (running, own, others)),
    )


def job_page(picture: Picture | None, job_id: int, explained: Explained, now: float) -> JobPage:
    """The page of the job `job_id`. `explained`: flexod's answer on it."""
    running = picture.jobs.jobs if picture else ()
    job = next((job for job in running if job.job_id == job_id), None)
    row = _row(job) if job else None
    reply = explained.reply
    if reply is None:
        unknown = "" if row else explained.refusal
        return JobPage(job_id, row, (), 0.0, None, 0, 0, (), (), unknown)
    restart = job.restart_count if job else max((event.restart_count for event in reply.events), default=0)
    events = [event for event in reversed(reply.events) if event.restart_count == restart]
    told, chart = _history(job, reply, events, now)
    return JobPage(
        job_id=job_id,
        row=row,
        why=tuple(reply.sentences),
        ended_at=reply.end.ended_at,
        chart=chart,
        least=job.min if job else reply.end.base_workers,
        most=job.max if job else reply.end.most_workers,
        happenings=told,
        speeds=tuple(job.scaling) if job else (),
    )


def _history(
    job: admin_pb2.ElasticJob | None,
    reply: admin_pb2.ExplainJobReply,
    events: list[admin_pb2.Event],
    now: float,
) -> tuple[tuple[Happening, ...], Chart | None]:
    """What happened to the job, newest first, and the picture of its workers.

    There is no picture of a job whose base is not known, such as one that waits.
    """
    end = reply.end
    base = _base_workers(job) if job else end.base_workers
    sizes = sizes_of(events, base, job.grants if job else ())
    changes = {step.event: step for step in sizes.steps}
    told = [
        Happening(
            anchor=f"event-{index}",
            at=event.at,
            kind=event.kind,
            text=event.text,
            before=changes[index].before if index in changes else None,
            after=changes[index].after if index in changes else None,
        )
        for index, event in enumerate(events)
    ]
    if not events or not (job or (end.base_workers and end.ended_at)):
        return tuple(reversed(told)), None
    begins_at = min(end.started_at or events[0].at, events[0].at)
    least, most = (job.min, job.max) if job else (end.base_workers, end.most_workers)
    chart = chart_of(sizes, begins_at, now if job else end.ended_at, least, most, ended=job is None)
    return tuple(reversed(told)), chart


def _base_workers(job: admin_pb2.ElasticJob) -> int:
    granted = sum(grant.workers for grant in job.grants if grant.state != LEAVING)
    return max(0, job.granted - granted)


def _interest(job: admin_pb2.ElasticJob) -> tuple[int, int]:
    return _INTEREST.get(job_words.job_state(job), 3), job.job_id


def _strips(picture: Picture) -> list[NodeStrip]:
    taken: Counter[str] = Counter()
    for job in picture.jobs.jobs:
        for grant in job.grants:
            taken[grant.node] += grant.workers * job.gpus_per_worker
    lent = {loan.node: loan.state for loan in picture.loans.loans}
    return [
        _strip(node, taken[node.name], lent.get(node.name, "")) for node in picture.nodes.nodes if node.gpus
    ]


def _strip(node: admin_pb2.NodeView, taken: int, loan: str) -> NodeStrip:
    allocated = min(node.gpus, node.gpus_allocated)
    in_satellites = min(allocated, taken)
    return NodeStrip(
        name=node.name,
        gpu_type=node.gpu_type,
        used=allocated - in_satellites,
        in_satellites=in_satellites,
        idle=node.gpus - allocated,
        unusable=node.unusable,
        loan=loan,
    )


def _row(job: admin_pb2.ElasticJob) -> JobRow:
    return JobRow(
        job_id=job.job_id,
        name=job_words.job_name(job),
        user=job.user,
        workers=job.workers,
        granted=job.granted,
        range=f"{job.min}-{job.max}",
        cap=job.wanted,
        state=job_words.job_state(job),
        done=f"{job.progress:.0%}" if job.progress else "",
        left=job_words.left(job),
        reason="; ".join(job.reasons),
        where=job_words.nodes(job),
    )


def _waiting(job: admin_pb2.WaitingJob, places: Mapping[int, int]) -> WaitingRow:
    return WaitingRow(
        job_id=job.job_id,
        user=job.user,
        range=f"{job.min}-{job.max}",
        least=job.min,
        reason=f"{job.waits_for} ({job.reason})" if job.waits_for else job.reason,
        place=places.get(job.job_id, 0),
        submitted_at=job.submitted_at,
        starts_at=job.starts_at,
    )
