"""Runs pMaster in the controller's cycle, and tells leaders their assignments with tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from flexo.aggregation.master import PoolAssignment, PoolMaster
from flexo.aggregation.pooled_job import PoolClient
from flexo.aggregation.settings import AggregationSettings
from flexo.events import Event
from flexo.model.aggregation import (
    AggregationView,
    AggregatorOffer,
    AggregatorOffers,
    AggregatorView,
    Eviction,
    PoolAggregator,
)
from flexo.model.elastic import ElasticJob, LeaderReport
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo_protos import aggregation_token
from flexo_protos.aggregation_token import AggregationToken, BadToken

TOKEN_LIFE_S: Final = 86_400
"""A token expires after half of this time at the earliest. It is renewed in time while flexod runs."""

_log = structlog.get_logger("flexo.controller")


class Aggregators(Protocol):
    """The attached pool Aggregators. Every method may be called from the controller's thread."""

    def attached(self) -> tuple[PoolAggregator, ...]:
        """Each attached Aggregator with its last status."""
        ...

    def evict(self, eviction: Eviction) -> None:
        """Have an Aggregator close a job's connections."""
        ...

    def drain(self, aggregator: str) -> None:
        """Have an Aggregator end once no job is connected to it."""
        ...


class PooledAggregation:
    """See the module. For the controller's thread alone, except `view`."""

    def __init__(
        self,
        settings: AggregationSettings,
        aggregators: Aggregators,
        assign: Callable[[JobKey, AggregatorOffers], None],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`assign` tells the leader of a job, if it is attached. `steady`: a clock that nobody sets."""
        self._aggregators = aggregators
        self._assign = assign
        self._steady = steady
        self._master = PoolMaster(settings, steady())
        self.view = AggregationView()
        """The state as of the last cycle. Replaced as a whole."""

    def cycle(
        self,
        now: float,
        jobs: Iterable[ElasticJob],
        reports: Mapping[JobKey, LeaderReport],
        queue: Iterable[QueuedJob],
    ) -> Iterator[Event]:
        """Decide and tell. `queue`: all jobs of the cluster."""
        attached = self._aggregators.attached()
        started = {job.job_id: job for job in queue if job.state is not JobState.PENDING}
        running = frozenset(job.key for job in started.values())
        clients = [
            PoolClient(job.key, job.user, job.account, use, len(job.base_nodes) + len(job.grants))
            for job in jobs
            if (report := reports.get(job.key)) is not None and (use := report.aggregation) is not None
        ]
        decided = self._master.tick(self._steady(), attached, clients, running)
        by_name = {each.name: each for each in attached}
        for assignment in decided.assignments:
            self._tell(assignment, by_name, now)
        for eviction in decided.evictions:
            self._aggregators.evict(eviction)
        for name in decided.drains:
            self._aggregators.drain(name)
        shown = tuple(_in_its_job(each, by_name.get(each.name), started) for each in decided.view.aggregators)
        self.view = replace(decided.view, aggregators=shown)
        for event in decided.events:
            yield Event(now, event.kind, event.job, event.text)

    def _tell(self, assignment: PoolAssignment, by_name: Mapping[str, PoolAggregator], now: float) -> None:
        try:
            offers = tuple(
                _offer(assignment, by_name[each.name], each.share, now) for each in assignment.shares
            )
        except KeyError:  # an Aggregator is away for a moment, and so is its key: the last assignment counts
            return
        except BadToken as error:
            _log.warning("no token can be signed", job=str(assignment.job), why=str(error))
            return
        self._assign(assignment.job, AggregatorOffers(assignment.version, offers))


def _in_its_job(
    shown: AggregatorView, attached: PoolAggregator | None, started: Mapping[int, QueuedJob]
) -> AggregatorView:
    """With the job that the Aggregator names, if that runs and is of the account that it has proved."""
    job = started.get(attached.slurm_job_id) if attached is not None else None
    if attached is None or job is None or job.owner != attached.owner:
        return shown
    return replace(shown, cluster_job=job.job_id, node=job.nodes[0] if len(job.nodes) == 1 else "")


def _offer(assignment: PoolAssignment, each: PoolAggregator, share: int, now: float) -> AggregatorOffer:
    token = AggregationToken(str(assignment.job), assignment.user, assignment.quota, expiry(now))
    return AggregatorOffer(each.host, each.port, aggregation_token.sign(token, each.key), share)


def expiry(now: float) -> int:
    """The time at which a token that is signed now expires.

    It is the same for half of a token's life, so that leaders hear of a renewed token only then.
    """
    half = TOKEN_LIFE_S // 2
    return (int(now) // half + 2) * half
