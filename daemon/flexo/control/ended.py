"""Detects that elastic jobs have ended, asks the cluster how they ended, and makes events of the ends.

After its start, flexod also asks about jobs that ended meanwhile: jobs that the event store knows without an
end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from flexo.clusters.base import Cluster, JobEnd, KnowsEnds
from flexo.events import Event
from flexo.model.elastic import ElasticJob
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.words import duration, workers
from flexo_protos.resources import as_number

_AT_ONCE: Final = 100
"""The most jobs in one command to the cluster."""
_TRIES: Final = 5
"""The most attempts of one query, while the cluster does not answer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One job's end, for the event store."""

    event: Event
    facts: str
    """JSON: as `flexo why --json` prints it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The observations of a job while it ran."""

    base_workers: int
    base_nodes: tuple[str, ...]
    most_workers: int
    started_at: float | None
    gpus_per_worker: int | float
    resizes: int
    paused_s: float
    tried_worker_s: float
    user: str
    account: str


class EndedJobs:
    """Tracks elastic jobs and reports their ends. For the controller's thread alone."""

    def __init__(
        self,
        cluster: Cluster,
        beside: Executor,
        unended: Iterable[JobKey],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`unended`: jobs that ran when the previous flexod ended, according to its event store.

        `beside`: executor for queries that the cycle does not await. `wake` is called, in any thread, when
        the cluster has answered.
        """
        self._wake = wake
        self._cluster = cluster if isinstance(cluster, KnowsEnds) else None
        self._beside = beside
        self._running: dict[JobKey, _Known | None] = dict.fromkeys(unended)
        """The observations of each job that runs. None: this flexod has not seen the job run."""
        self._missed: frozenset[JobKey] = frozenset()
        """Running jobs that the last poll did not show. One poll may be wrong, as after a restart of the
        cluster's controller."""
        self._gone: dict[JobKey, tuple[_Known | None, float, int]] = {}
        """The missing jobs: their last observations, when each was missed, and how many queries failed."""
        self._asked: tuple[tuple[JobKey, ...], Future[Mapping[JobKey, JobEnd]]] | None = None

    @property
    def waits(self) -> bool:
        """Whether the end of a job is still to be found out. The next poll is then due soon."""
        return bool(self._missed or self._gone)

    def look(self, queue: Iterable[QueuedJob], jobs: Iterable[ElasticJob], now: float) -> list[Ended]:
        """Process one poll. Returns the ends that are known by now."""
        here = {job.key for job in queue if job.state is not JobState.PENDING or job.unreadable}
        started = {job.key: job.started_at for job in queue if job.key in here and job.elastic}
        missed = frozenset(self._running.keys() - here)
        for key in missed & self._missed:
            self._gone[key] = self._running.pop(key), now, 0
        self._missed = missed - self._gone.keys()
        for job in jobs:
            self._running[job.key] = _known(job, started.get(job.key), self._running.get(job.key))
        return self._told(now)

    def _told(self, now: float) -> list[Ended]:
        told = self._answered(now)
        if self._asked is None and self._gone:
            keys = tuple(self._gone)[:_AT_ONCE]
            if self._cluster is None:
                return [*told, *(self._end(key, None, now) for key in keys)]
            self._asked = keys, self._beside.submit(self._cluster.ends, keys)
            self._asked[1].add_done_callback(lambda _: self._wake())
            told += self._answered(now)
        return told

    def _answered(self, now: float) -> list[Ended]:
        if self._asked is None or not self._asked[1].done():
            return []
        (keys, answer), self._asked = self._asked, None
        try:
            ends = answer.result()
        except Exception:  # no answer, or a wrong one: a job's end must not fail the cycle
            for key in keys:
                known, missed_at, tries = self._gone[key]
                self._gone[key] = known, missed_at, tries + 1
            return [self._end(key, None, now) for key in keys if self._gone[key][2] >= _TRIES]
        return [self._end(key, ends.get(key), now) for key in keys]

    def _end(self, key: JobKey, end: JobEnd | None, now: float) -> Ended:
        known, missed_at, _ = self._gone.pop(key)
        started_at = (end.started_at if end else None) or (known.started_at if known else None)
        ended_at = end.ended_at if end and end.ended_at else missed_at
        facts = {
            "state": end.state if end else "",
            "exit_code": end.exit_code if end else "",
            "started_at": started_at,
            "ended_at": ended_at if end or known else None,
            "known_by": end.known_by if end else "",
            "base_workers": known.base_workers if known else None,
            "most_workers": known.most_workers if known else None,
            "gpus_per_worker": known.gpus_per_worker if known else None,
            "resizes": known.resizes if known else None,
            "paused_s": known.paused_s if known else None,
            "tried_worker_s": known.tried_worker_s if known else None,
            "user": known.user if known else None,
            "account": known.account if known else None,
        }
        text = "; ".join(filter(None, (_how(end, started_at, ended_at), _what(known))))
        return Ended(Event(now, "end", key, text), json.dumps(facts, separators=(",", ":")))


def _known(job: ElasticJob, started_at: float | None, before: _Known | None) -> _Known:
    """What is known of a running job. A leader that is away reports nothing; its last numbers stay."""
    return _Known(
        job.base_workers,
        job.base_nodes,
        max(job.granted_workers, before.most_workers if before else 0),
        started_at,
        as_number(job.shape.gpus),
        max(job.resizes, before.resizes if before else 0),
        max(job.paused_s, before.paused_s if before else 0.0),
        max(job.tried_worker_s, before.tried_worker_s if before else 0.0),
        job.user,
        job.account,
    )


def _how(end: JobEnd | None, started_at: float | None, ended_at: float) -> str:
    if end is None:
        return "the job has left the queue; neither the cluster nor its accounting says how it ended"
    code = f" (exit code {end.exit_code})" if end.exit_code else ""
    ran_s = ended_at - started_at if started_at is not None and end.ended_at else 0.0
    after = f" after {duration(ran_s)}" if ran_s > 0 else ""
    by = ", says the cluster's accounting" if end.known_by == "accounting" else ""
    return f"the job ended: {end.state}{code}{after}{by}"


def _what(known: _Known | None) -> str:
    if known is None:
        return "it ended while flexod was away"
    base = f"it had {workers(known.base_workers)} in its base on {', '.join(known.base_nodes)}"
    grew = known.most_workers > known.base_workers
    return f"{base}, at most {workers(known.most_workers)} with satellites" if grew else base
