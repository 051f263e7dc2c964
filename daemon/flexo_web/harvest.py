"""The GPU hours that satellites had, by job and account, read from flexod's events bit by bit."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from flexo_cli.job_words import gpus_per_worker
from flexo_protos.v1 import admin_pb2
from flexo_web.feed import Client
from flexo_web.idle import day_of

DAYS: Final = 30
"""The days that are read."""
_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
_FRESH_S: Final = 10.0
_BETWEEN_S: Final = 0.1
"""The least time between two requests, so that a long history does not keep flexod busy."""
_PAGE: Final = 1000
MOST_EVENTS: Final = 200_000
"""The most events that are read."""
_KINDS: Final = ("grow", "adopt", "shrink", "failure", "left", "lost", "end")
NOT_KNOWN: Final = "not known"
"""The account of jobs that ended before flexod recorded accounts, and of jobs without one."""

Key = tuple[int, int]
"""A job's number, and how often it was requeued."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a job is, and what its workers hold."""

    user: str
    account: str
    gpus: float
    """GPUs of a worker; 0: none, or not known."""


@dataclass(frozen=True, slots=True)
class Harvested:
    """The GPU hours that the satellites of an account's jobs had."""

    account: str
    jobs: int
    """Jobs with satellites in the last 30 days."""
    day: float
    """Of the last 24 hours."""
    week: float
    month: float
    """Of the last 30 days."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Workers in a satellite. `until` is infinite while it stands."""

    node: str
    workers: int
    since: float
    until: float = float("inf")

    def seconds(self, begin: float, end: float) -> float:
        """Worker seconds between two times."""
        return self.workers * max(0.0, min(self.until, end) - max(self.since, begin))


@dataclass(slots=True)
class _Job:
    spans: list[_Span] = field(default_factory=list)
    standing: dict[str, _Span] = field(default_factory=dict)
    owner: Owner | None = None
    """Known from the job's end; None: it has not ended, or an older flexod recorded the end."""


class Harvest:
    """The grants of the last 30 days. Each event is read once."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self._jobs: defaultdict[Key, _Job] = defaultdict(_Job)
        self._newest = 0
        self._asked_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._sums: dict[str, tuple[Harvested, ...]] = {}
        self._sums_of = 0.0, 0
        """The time and the newest event that `_sums` are of."""
        self.begins_at = 0.0
        """Time of the oldest event that was read; 0: none was."""
        self.complete = False
        """Whether all events of the 30 days were read."""
        self.trouble = ""
        """The reason why the last reading failed; "": it did not."""

    def look(self) -> None:
        """Somebody looks: read what is new, in the background."""
        if self._reading is None and self._clock() - self._asked_at >= _FRESH_S:
            self._reading = asyncio.create_task(self._read())

    async def wait(self) -> None:
        """Wait until the reading that is under way has ended."""
        if self._reading is not None:
            await asyncio.shield(self._reading)

    def by_account(
        self, owner_of: Callable[[Key], Owner | None], now: float, viewer: str
    ) -> tuple[Harvested, ...]:
        """The sums of each account, the largest first.

        `owner_of`: None for a job that does not count. `viewer`: names who sees the jobs like that; the sums
        are made once for each `now` and viewer.
        """
        if self._sums_of != (now, self._newest):
            self._sums.clear()
            self._sums_of = now, self._newest
        if viewer not in self._sums:
            self._sums[viewer] = self._summed(owner_of, now)
        return self._sums[viewer]

    def _summed(self, owner_of: Callable[[Key], Owner | None], now: float) -> tuple[Harvested, ...]:
        windows = (1, 7, DAYS)
        sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * len(windows))
        jobs: Counter[str] = Counter()
        for key, job in self._jobs.items():
            owner = owner_of(key)
            if owner is None or not owner.gpus:
                continue
            hours = [owner.gpus * _hours(job, now - days * _DAY_S, now) for days in windows]
            if hours[-1]:
                name = owner.account or NOT_KNOWN
                jobs[name] += 1
                sums[name] = [sum(pair) for pair in zip(sums[name], hours, strict=True)]
        found = [Harvested(name, jobs[name], *hours) for name, hours in sums.items()]
        return tuple(sorted(found, key=lambda row: (-row.month, row.account)))

    def by_day(self, owner_of: Callable[[Key], Owner | None], now: float) -> Iterator[tuple[str, str, float]]:
        """Day, account and GPU hours, by day. `owner_of`: as above."""
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        for key, job in self._jobs.items():
            owner = owner_of(key)
            if owner is None or not owner.gpus:
                continue
            for span in (*job.spans, *job.standing.values()):
                for begin, end in _days(max(span.since, now - DAYS * _DAY_S), min(span.until, now)):
                    hours = owner.gpus * span.seconds(begin, end) / _HOUR_S
                    sums[day_of(begin), owner.account or NOT_KNOWN] += hours
        for (day, account), hours in sorted(sums.items()):
            yield day, account, hours

    def ended(self, key: Key) -> Owner | None:
        """The owner of a job that has ended, if flexod recorded it."""
        return self._jobs[key].owner if key in self._jobs else None

    async def _read(self) -> None:
        try:
            await self._read_new()
            self.trouble = ""
        except Exception as error:  # whatever it is: the page says it, and what is known stays
            self.trouble = str(error) or repr(error)
        finally:
            self._asked_at, self._reading = self._clock(), None

    async def _read_new(self) -> None:
        """Read all events after the newest one that is known, then enter them, oldest first."""
        now = self._clock()
        request = admin_pb2.ListEventsRequest(
            kinds=_KINDS, since_at=now - DAYS * _DAY_S, after=self._newest, limit=_PAGE
        )
        events: list[admin_pb2.Event] = []
        reply = await self._client.call(lambda daemon: daemon.events(request))
        events += reply.events
        newest = reply.newest  # of the first page: what happens meanwhile is after it
        while reply.before and len(events) < MOST_EVENTS:
            await asyncio.sleep(_BETWEEN_S)
            request.before = reply.before
            reply = await self._client.call(lambda daemon: daemon.events(request))
            events += reply.events
        if newest < self._newest:  # the event store was begun anew: the next reading reads it all
            self._jobs.clear()
            self._newest, self.begins_at = 0, 0.0
            return
        for event in reversed(events):
            self._enter(event)
        self.complete = not reply.before and (self.complete or not self._newest)
        self._newest = newest
        self._forget(now - DAYS * _DAY_S)

    def _enter(self, event: admin_pb2.Event) -> None:
        self.begins_at = self.begins_at or event.at
        job, change = self._jobs[event.job_id, event.restart_count], event.grant
        if event.HasField("end"):
            end = event.end
            if end.user:
                job.owner = Owner(end.user, end.account, round(end.gpus_per_worker, 6))
        elif event.HasField("grant") and change.begins and change.node not in job.standing:
            job.standing[change.node] = _Span(change.node, change.workers, event.at)
        elif event.HasField("grant") and not change.begins and change.node in job.standing:
            span = job.standing.pop(change.node)
            job.spans.append(_Span(span.node, span.workers, span.since, event.at))
        if event.kind == "end":
            ended = [_Span(span.node, span.workers, span.since, event.at) for span in job.standing.values()]
            job.spans += ended
            job.standing.clear()

    def _forget(self, before: float) -> None:
        for key, job in list(self._jobs.items()):
            job.spans = [span for span in job.spans if span.until > before]
            if not job.spans and not job.standing:
                del self._jobs[key]


def owners_of(jobs: Iterable[admin_pb2.ElasticJob]) -> dict[Key, Owner]:
    """The owners of jobs that run."""
    return {
        (job.job_id, job.restart_count): Owner(job.user, job.account, float(gpus_per_worker(job)))
        for job in jobs
    }


def _hours(job: _Job, begin: float, end: float) -> float:
    """The worker hours of a job's satellites between two times."""
    spans = (*job.spans, *job.standing.values())
    return sum(span.seconds(begin, end) for span in spans) / _HOUR_S


def _days(begin: float, end: float) -> Iterator[tuple[float, float]]:
    """The local days from `begin` to `end`, each as its first and last instant."""
    while begin < end:
        parts = time.localtime(begin)
        following = time.mktime((parts.tm_year, parts.tm_mon, parts.tm_mday + 1, 0, 0, 0, 0, 0, -1))
        yield begin, min(following, end)
        begin = max(following, begin + 1)
