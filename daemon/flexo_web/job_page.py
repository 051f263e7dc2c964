"""The page of one job, made of a snapshot of flexod and flexod's explanation: frozen facts without markup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexo_cli.cost import Cost, cost_of, ended_run, present_run, satellite_worker_s
from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.answers import Answer
from flexo_web.chart import Chart, chart_of
from flexo_web.explained import Because, Explained
from flexo_web.privacy import Privacy
from flexo_web.rows import JobRow, WaitingRow, row_of, waiting_of
from flexo_web.sizes import LEAVING, sizes_of

_MINUTE_S: Final = 60.0
_ALL_EVENTS: Final = 200
"""The most events in an explanation of flexod's."""


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of a job's. `before` and `after`: granted workers; None: it changes nothing there."""

    anchor: str
    number: int
    """Of its entry in the event store; 0: an older flexod does not say it."""
    at: float
    kind: str
    text: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class Hours:
    """What the job had, in hours of GPUs, or of workers where they have no GPU."""

    unit: str
    base: float
    gained: float
    """On satellites."""
    lost: float | None
    """Of both together: training stood still for resizes. None: not known."""
    at_least: bool
    """Older events are missing, and satellites with them."""

    @property
    def share(self) -> str:
        """The part that satellites gave, as `flexo cost` has it: ``80%``. "": they gave nothing."""
        return f"{self.gained / (self.base + self.gained):.0%}" if self.gained else ""


@dataclass(frozen=True, slots=True)
class JobPage:
    """The page of one job, running, waiting or ended."""

    job_id: int
    row: JobRow | None
    """None: it does not run."""
    waiting: WaitingRow | None
    """None: it does not wait."""
    headline: Because
    """The size and its reason, in a few words; without text: it neither runs nor waits."""
    why: tuple[Because, ...]
    hours: Hours | None
    """None: flexod does not know when it started."""
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
    user: str = ""
    """That owns it; "": not known."""
    satellite_of: int = 0
    """The job whose satellite this one is; 0: it is none."""

    @property
    def has_history(self) -> bool:
        """Whether flexod records what happens to it: not of satellites, nor of jobs that are not elastic."""
        return bool(self.happenings or self.row or self.waiting or self.ended_at)


def job_page(
    picture: Picture | None,
    job_id: int,
    explained: Answer[admin_pb2.ExplainJobReply],
    privacy: Privacy,
    now: float,
) -> JobPage:
    """The page of the job `job_id`. `explained`: flexod's answer on it."""
    running = picture.jobs.jobs if picture else ()
    job = next((job for job in running if job.job_id == job_id), None)
    reply = explained.reply
    if not privacy.of_job(job_id) and not (reply and privacy.owns(reply.user)):
        return _unknown(job_id, None, f"job {job_id} is not in the queue")
    restart = _restart(job, reply)
    events = [event for event in reversed(reply.events) if event.restart_count == restart] if reply else []
    found = Explained(reversed(events))
    row = row_of(job, found) if job else None
    waits = next((each for each in (picture.jobs.waiting if picture else ()) if each.job_id == job_id), None)
    if reply is None:
        return _unknown(job_id, row, "" if row else explained.refusal)
    told, chart = _history(job, reply, events, now, privacy)
    return JobPage(
        job_id=job_id,
        row=row,
        waiting=waiting_of(waits, found) if waits else None,
        headline=found.because(
            privacy.text(reply.headline), job_id, restart, _event_of_size(job, waits, found)
        ),
        why=tuple(
            found.because(
                privacy.text(sentence),
                job_id,
                restart,
                _event_of(sentence, job, waits) or _event_of_node(sentence, picture),
            )
            for sentence in reply.sentences
        ),
        hours=_hours(job, reply, events, now - now % _MINUTE_S),
        ended_at=reply.end.ended_at,
        chart=chart,
        least=job.min if job else reply.end.base_workers,
        most=job.max if job else reply.end.most_workers,
        happenings=told,
        speeds=tuple(job.scaling) if job else (),
        user=reply.user,
        satellite_of=reply.satellite_of,
    )


def _event_of_size(
    job: admin_pb2.ElasticJob | None, waits: admin_pb2.WaitingJob | None, found: Explained
) -> int:
    """The number of the event that says why the job has its size; 0: none is known."""
    if job:
        return job.reason_event or found.size(job.job_id, job.restart_count)
    return waits.reason_event if waits else 0


def _event_of(sentence: str, job: admin_pb2.ElasticJob | None, waits: admin_pb2.WaitingJob | None) -> int:
    """The number of the event that flexod names for this sentence of an explanation; 0: it names none."""
    if job and sentence in job.reasons:
        return job.reason_event
    return waits.reason_event if waits and f"{waits.waits_for} ({waits.reason})" in sentence else 0


def _event_of_node(sentence: str, picture: Picture | None) -> int:
    """The number of the event on the unusable node that the sentence begins with; 0: it names none."""
    nodes = picture.nodes.nodes if picture else ()
    begins = ((f"{node.name} cannot be used ({node.unusable})", node.idle_event) for node in nodes)
    return next((event for words, event in begins if sentence.startswith(words)), 0)


def _restart(job: admin_pb2.ElasticJob | None, reply: admin_pb2.ExplainJobReply | None) -> int:
    """The number of the present or last run."""
    if job:
        return job.restart_count
    return max((event.restart_count for event in (reply.events if reply else ())), default=0)


def _unknown(job_id: int, row: JobRow | None, why: str) -> JobPage:
    return JobPage(job_id, row, None, Because("", 0), (), None, 0.0, None, 0, 0, (), (), why)


def _hours(
    job: admin_pb2.ElasticJob | None,
    reply: admin_pb2.ExplainJobReply,
    events: list[admin_pb2.Event],
    now: float,
) -> Hours | None:
    """What the job had so far, as `flexo cost` says it."""
    run = (present_run(job, now) if job.started_at else None) if job else ended_run(reply.end)
    if run is None:
        return None
    cost: Cost = cost_of(run, satellite_worker_s(events, run.until))
    each = run.gpus or 1
    return Hours(
        unit="GPU hours" if run.gpus else "worker hours",
        base=cost.base * each,
        gained=cost.satellites * each,
        lost=None if cost.lost is None else cost.lost * each,
        at_least=len(reply.events) >= _ALL_EVENTS,
    )


def _history(
    job: admin_pb2.ElasticJob | None,
    reply: admin_pb2.ExplainJobReply,
    events: list[admin_pb2.Event],
    now: float,
    privacy: Privacy,
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
            number=event.number,
            at=event.at,
            kind=event.kind,
            text=privacy.text(event.text),
            before=changes[index].before if index in changes else None,
            after=changes[index].after if index in changes else None,
        )
        for index, event in enumerate(events)
    ]
    if not events or not (job or (end.base_workers and end.ended_at)):
        return tuple(reversed(told)), None
    started_at = (job.started_at if job else 0.0) or end.started_at
    begins_at = min(started_at or events[0].at, events[0].at)
    least, most = (job.min, job.max) if job else (end.base_workers, end.most_workers)
    chart = chart_of(sizes, begins_at, now if job else end.ended_at, least, most, ended=job is None)
    return tuple(reversed(told)), chart


def _base_workers(job: admin_pb2.ElasticJob) -> int:
    granted = sum(grant.workers for grant in job.grants if grant.state != LEAVING)
    return max(0, job.granted - granted)
