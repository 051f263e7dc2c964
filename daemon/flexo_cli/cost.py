"""`flexo cost`: prints the GPU hours of a job: its base's, what satellites gained, and what resizes lost."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flexo.words import duration, workers
from flexo_cli.connection import Daemon, Refusal, find_address
from flexo_cli.events import pages
from flexo_cli.job_words import gpus_per_worker
from flexo_cli.options import DaemonOption, JobArgument, JsonOption
from flexo_cli.output import Json, print_json, print_pairs
from flexo_protos.v1 import admin_pb2

_KINDS: Final = ("grow", "adopt", "shrink", "failure", "left", "lost")
"""The kinds of events that begin or end a grant."""
_MOST_EVENTS: Final = 1_000_000
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, from its start on: the last one, if it was requeued."""

    restart_count: int
    state: str
    """How it ended, in the cluster's word; "": it still runs."""
    started_at: float
    until: float
    """Its end, or now."""
    base_workers: int
    gpus: int | float
    """GPUs of a worker; 0: none, or not known."""
    resizes: int
    paused_s: float
    tried_worker_s: float = 0.0
    """Worker seconds of trials of several batches, which are part of the others."""

    @property
    def seconds(self) -> float:
        """The time from its start on."""
        return max(0.0, self.until - self.started_at)


@dataclass(frozen=True, slots=True)
class Cost:
    """The worker hours of a run."""

    base: float
    satellites: float
    lost: float | None
    """Of both together: training stood still for resizes. None: its leader has told flexod of no resize."""

    @property
    def all(self) -> float:
        """Base and satellites."""
        return self.base + self.satellites


def cost(job: JobArgument, daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """Show the GPU hours of a job: its base's, those gained on satellites, those lost to resizes.

    Of a job that was requeued, the last run counts. A satellite counts from its grant until it is given back,
    its start included. The time that is lost to resizes is what the job's workers measured.
    """
    flexod = Daemon(find_address(daemon))
    run = _run(flexod, job)
    asked = admin_pb2.ListEventsRequest(job_id=job, kinds=_KINDS)
    events = [each for each in pages(flexod, asked, _MOST_EVENTS) if each.restart_count == run.restart_count]
    found = cost_of(run, satellite_worker_s(reversed(events), run.until))
    if as_json:
        print_json(_as_json(job, run, found))
    else:
        print_pairs(_pairs(job, run, found))


def satellite_worker_s(events: Iterable[admin_pb2.Event], until: float) -> float:
    """The seconds that workers in satellites had, by the grants of `events`, which come oldest first.

    A job has at most one satellite on a node. A grant that has not ended counts to `until`.
    """
    seconds = 0.0
    standing: dict[str, tuple[int, float]] = {}
    for event in events:
        if not event.HasField("grant"):
            continue
        if event.grant.begins:
            standing.setdefault(event.grant.node, (event.grant.workers, event.at))
        elif event.grant.node in standing:
            number, since = standing.pop(event.grant.node)
            seconds += number * max(0.0, event.at - since)
    return seconds + sum(number * max(0.0, until - since) for number, since in standing.values())


def cost_of(run: Run, satellite_s: float) -> Cost:
    """The cost of a run whose workers in satellites had `satellite_s` seconds.

    All workers stand still in a pause, so the lost part is the paused part of the run's time.
    """
    base_s = run.base_workers * run.seconds
    part = min(1.0, run.paused_s / run.seconds) if run.seconds else 0.0
    lost = part * (base_s + satellite_s) / _HOUR_S if run.resizes or not satellite_s else None
    return Cost(base_s / _HOUR_S, satellite_s / _HOUR_S, lost)


def _run(flexod: Daemon, job: int) -> Run:
    """The job's last run. Raises Refusal for a job that has not started, or of which too little is known."""
    running = flexod.running_job(job)
    if running is not None and running.started_at:
        return present_run(running, time.time())
    reply = flexod.explain(job)
    ended = ended_run(reply.end)
    if ended is None:
        unknown = "; ".join(["flexod does not know when it started and ended", *reply.sentences[:1]])
        raise Refusal(f"job {job}: {reply.headline or unknown}")
    return ended


def present_run(job: admin_pb2.ElasticJob, now: float) -> Run:
    """The run of a job whose start is known, up to `now`."""
    return Run(
        restart_count=job.restart_count,
        state="",
        started_at=job.started_at,
        until=now,
        base_workers=0 if job.opportunistic else job.min,
        gpus=gpus_per_worker(job),
        resizes=job.resizes,
        paused_s=job.paused_s,
        tried_worker_s=job.tried_worker_s,
    )


def ended_run(end: admin_pb2.JobEnd) -> Run | None:
    """The run that has ended; None: flexod does not know when it started and ended."""
    if not (end.started_at and end.ended_at):
        return None
    return Run(
        restart_count=end.restart_count,
        state=end.state or "ended",
        started_at=end.started_at,
        until=end.ended_at,
        base_workers=end.base_workers,
        gpus=round(end.gpus_per_worker, 6),
        resizes=end.resizes,
        paused_s=end.paused_s,
        tried_worker_s=end.tried_worker_s,
    )


def _pairs(job: int, run: Run, found: Cost) -> list[tuple[str, str]]:
    each = run.gpus or 1
    unit = "GPU hours" if run.gpus else "worker hours"
    of = f" of {each:g} GPU{'' if each == 1 else 's'}" if run.gpus else ""
    state = f"{run.state} after" if run.state else "runs for"
    stood = f"stood still for {run.paused_s:.1f} s in {run.resizes} resize{'' if run.resizes == 1 else 's'}"
    lost = "not known" if found.lost is None else f"{hours_text(found.lost * each)} {unit}: it {stood}"
    gained = hours_text(found.satellites * each)
    share = f", {found.satellites / found.all:.0%} of all" if found.all else ""
    return [
        (f"job {job}", f"{state} {duration(run.seconds)}"),
        ("base", f"{hours_text(found.base * each)} {unit}: {workers(run.base_workers)}{of}"),
        ("gained", f"{gained} {unit} on satellites, their starts included{share}"),
        ("lost", lost),
        *([("tried", _tried(run, found, each, unit))] if run.tried_worker_s else []),
        ("in all", f"{hours_text(found.all * each)} {unit}"),
    ]


def _tried(run: Run, found: Cost, each: int | float, unit: str) -> str:
    hours = run.tried_worker_s / _HOUR_S
    share = f" ({hours / found.all:.1%} of all)" if found.all else ""
    return f"{hours_text(hours * each)} {unit}{share}: first steps with several batches"


def hours_text(hours: float) -> str:
    """Hours for people: ``less than 0.01``, ``0.40``, ``12.3``."""
    if 0 < hours < 0.01:
        return "less than 0.01"
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}"


def _as_json(job: int, run: Run, found: Cost) -> Json:
    return {
        "job_id": job,
        "restart_count": run.restart_count,
        "state": run.state or None,
        "started_at": run.started_at,
        "ended_at": run.until if run.state else None,
        "gpus_per_worker": run.gpus or None,
        "base_worker_hours": found.base,
        "satellite_worker_hours": found.satellites,
        "lost_worker_hours": found.lost,
        "resizes": run.resizes,
        "paused_s": run.paused_s,
        "tried_worker_hours": run.tried_worker_s / _HOUR_S,
    }
