"""What the pages Now, and Mine and waiting say, made of a snapshot of flexod: frozen facts without markup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flexo_cli import job_words
from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.explained import Explained
from flexo_web.held import HeldGpus, held_gpus
from flexo_web.idle import IdleGpus, idle_gpus
from flexo_web.privacy import Privacy
from flexo_web.rows import JobRow, NodeStrip, WaitingRow, row_of, strips_of, waiting_of

MOST_ROWS: Final = 500
"""The most jobs in a table: more of them make no page that anybody reads, but one that is slow."""
MOST_NODES: Final = 2000
_EXPLAINED: Final = 5
"""The most pending jobs of a viewer of which flexod is asked what they need."""
_INTEREST: Final = {"resizing": 0, "no leader": 1, "suspended": 1, "paused": 1, "starting": 2, "training": 4}


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
    idle: tuple[IdleGpus, ...]
    """Idle GPUs, with the reason for which they are idle."""
    held: tuple[HeldGpus, ...]
    """GPUs that jobs hold and do not train on. Those of jobs that the viewer may see."""
    held_left_out: int
    measured: bool
    """Whether flexod is told how busy some GPUs are: those that jobs may share."""
    others_hidden: bool
    """Whether the viewer may see his own jobs alone."""
    untold: bool
    """Whether flexo-web itself does not see all jobs."""


@dataclass(frozen=True, slots=True)
class Mine:
    """The page of the viewer's jobs, and of all that wait."""

    running: tuple[JobRow, ...]
    own_waiting: tuple[WaitingRow, ...]
    others_waiting: tuple[WaitingRow, ...]
    left_out: int


def now_page(whole: Picture, privacy: Privacy, explained: Explained) -> Now:
    """The page of the whole cluster. `privacy`: what the viewer may see of `whole`."""
    status, picture = whole.status, privacy.picture() or whole
    strips = strips_of(whole, privacy)
    jobs = sorted(picture.jobs.jobs, key=_interest)
    held = held_gpus(jobs, explained, whole.at)
    software = f"{status.software or 'Slurm'} {status.slurm_version}"
    return Now(
        software=f"{status.cluster}, {software}" if status.cluster else "not known yet",
        policy=status.policy + (" (dry run: decides, changes nothing)" if status.dry_run else ""),
        gpus=status.gpus,
        gpus_idle=status.gpus_idle,
        gpus_in_satellites=status.gpus_in_satellites,
        nodes=tuple(strips[:MOST_NODES]),
        nodes_left_out=max(0, len(strips) - MOST_NODES),
        jobs=tuple(row_of(job, explained) for job in jobs[:MOST_ROWS]),
        jobs_left_out=max(0, len(jobs) - MOST_ROWS),
        waiting=len(picture.jobs.waiting),
        idle=privacy.idle(idle_gpus(whole, explained)),
        held=held[:MOST_ROWS],
        held_left_out=max(0, len(held) - MOST_ROWS),
        measured=any(job.shared_gpus for job in picture.jobs.jobs),
        others_hidden=privacy.hides,
        untold=privacy.is_untold,
    )


def named_jobs(name: str, picture: Picture | None) -> tuple[int, ...]:
    """The jobs of this name that run or wait, as far as `picture` shows them."""
    if picture is None:
        return ()
    run = (job.job_id for job in picture.jobs.jobs if job.name == name)
    wait = (job.job_id for job in picture.jobs.waiting if job.name == name)
    return (*run, *wait)


def first_waiting(picture: Picture, user: str) -> tuple[int, ...]:
    """The jobs of `user` that wait, as many as flexod is asked about: those whose turn is next."""
    own = [job for job in picture.jobs.waiting if job.user == user]
    own.sort(key=lambda job: (job.place or float("inf"), job.submitted_at, job.job_id))
    return tuple(job.job_id for job in own[:_EXPLAINED])


def mine_page(picture: Picture, user: str, explained: Explained, reasons: Mapping[int, str]) -> Mine:
    """The jobs of `user`, and all that wait: those with a place come first, by it.

    `reasons`: flexod's own for some of the user's jobs that wait.
    """
    waiting = sorted(
        (waiting_of(job, explained, reasons.get(job.job_id, "")) for job in picture.jobs.waiting),
        key=lambda row: (row.place or float("inf"), row.submitted_at, row.job_id),
    )
    running = [row_of(job, explained) for job in picture.jobs.jobs if job.user == user]
    own = [row for row in waiting if row.user == user]
    others = [row for row in waiting if row.user != user]
    return Mine(
        running=tuple(running[:MOST_ROWS]),
        own_waiting=tuple(own[:MOST_ROWS]),
        others_waiting=tuple(others[:MOST_ROWS]),
        left_out=sum(max(0, len(rows) - MOST_ROWS) for rows in (running, own, others)),
    )


def _interest(job: admin_pb2.ElasticJob) -> tuple[int, int]:
    return _INTEREST.get(job_words.job_state(job), 3), job.job_id
