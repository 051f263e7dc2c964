"""Which GPUs jobs hold without training on them, as far as flexod knows, and why."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from flexo.words import duration
from flexo_cli import job_words
from flexo_cli.job_words import ShownState
from flexo_protos.v1 import admin_pb2
from flexo_web.explained import Explained
from flexo_web.sizes import LEAVING

_WARMING: Final = "warming"


class Held(enum.StrEnum):
    """A kind of reason for which a job does not use GPUs that it holds."""

    SUSPENDED = "the job is suspended"
    NO_LEADER = "the job's leader is not attached: flexod cannot tell whether it trains"
    PAUSED = "the job is paused, below its minimum"
    STARTING = "the job starts, and does not train yet"
    WARMING = "a satellite starts, and does not train yet"
    LEAVING = "a satellite is leaving"
    SILENT = "no batch for long"


_OF_STATE: Final = {
    ShownState.SUSPENDED: Held.SUSPENDED,
    ShownState.NO_LEADER: Held.NO_LEADER,
    ShownState.PAUSED: Held.PAUSED,
    ShownState.STARTING: Held.STARTING,
}
"""The states of a job in which it uses none of its GPUs."""
_OF_GRANT: Final = {_WARMING: Held.WARMING, LEAVING: Held.LEAVING}


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """GPUs that one job holds and does not use, for one reason."""

    gpus: int | float
    job_id: int
    name: str
    """The job's id: ``17``, or ``17.r1`` after a restart."""
    reason: Held
    text: str
    """The reason, with how long it lasts if that is known."""
    event: int
    """The number of the event that says why; 0: none is known."""


def held_gpus(jobs: Iterable[admin_pb2.ElasticJob], explained: Explained, now: float) -> tuple[HeldGpus, ...]:
    """The GPUs that `jobs` hold and do not use at `now`, or may not use; the most first."""
    found = [
        HeldGpus(
            gpus,
            job.job_id,
            job_words.job_name(job),
            reason,
            _text(reason, job, now),
            _event(reason, job, explained),
        )
        for job in jobs
        for reason, workers in _unused(job).items()
        if (gpus := workers * job_words.gpus_per_worker(job))
    ]
    return tuple(sorted(found, key=lambda held: (-held.gpus, held.job_id, held.reason)))


def _text(reason: Held, job: admin_pb2.ElasticJob, now: float) -> str:
    if reason is not Held.SILENT:
        return reason.value
    silent = duration(max(0.0, now - job.silent_since_at))
    return f"no batch for {silent}: the job may evaluate, or be stuck"


def _event(reason: Held, job: admin_pb2.ElasticJob, explained: Explained) -> int:
    if reason in (Held.WARMING, Held.LEAVING):
        return explained.size(job.job_id, job.restart_count)
    return job.silent_event if reason is Held.SILENT else job.reason_event


def _unused(job: admin_pb2.ElasticJob) -> Counter[Held]:
    """The workers by the reason for which they do not train."""
    unused = Counter[Held]()
    whole = _OF_STATE.get(job_words.shown_state(job), Held.SILENT if job.silent_since_at else None)
    if whole is not None:
        base = job.granted - sum(grant.workers for grant in job.grants if grant.state != LEAVING)
        unused[whole] += max(0, base)
    for grant in _with_own_gpus(job):
        reason = _OF_GRANT.get(grant.state, whole if grant.state == "training" else None)
        if whole is Held.NO_LEADER and reason is Held.WARMING:
            reason = whole  # as far as flexod knows: after its restart, a satellite may have trained for long
        if reason is not None:
            unused[reason] += grant.workers
    return unused


def _with_own_gpus(job: admin_pb2.ElasticJob) -> Iterator[admin_pb2.GrantView]:
    """The satellites that hold GPUs: those on shared GPUs are guests there."""
    return (grant for grant in job.grants if not grant.shared_gpus)
