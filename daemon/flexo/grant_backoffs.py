"""How long a job, and a node for a job, rest after grants that came to nothing.

After the n-th failure in a row nothing is tried for 60, 120, ... seconds, at most 900.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from flexo.model.elastic import FailureReason, Grant
from flexo.model.queue import JobKey

FIRST_S: Final = 60.0
"""Also the least time between two tries of one job after a satellite that came to nothing."""
LONGEST_S: Final = 900.0

NO_FAULT: Final = frozenset({FailureReason.PREEMPTED, FailureReason.SLOW_GPU})
"""Reasons after which the job does not rest, because it has done nothing wrong."""


@dataclass(frozen=True, slots=True)
class _Backoff:
    failures: int = 0
    until: float = 0.0

    def again(self, now: float) -> _Backoff:
        wait = min(LONGEST_S, FIRST_S * 2.0**self.failures)
        return _Backoff(self.failures + 1, now + wait)

    def after_unused(self, until: float, now: float) -> _Backoff:
        """After a grant of which no satellite ever ran. From the second in a row on it rests longer."""
        if self.until > now:  # it was given together with others that came to nothing
            return _Backoff(self.failures, until)
        longer = _Backoff(self.failures - 1, 0.0).again(now).until if self.failures else 0.0
        return _Backoff(self.failures + 1, max(longer, until))


class Backoffs:
    """Of all jobs that run. `now` and what is answered: seconds since the epoch."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[JobKey, str], _Backoff] = {}
        self._jobs: dict[JobKey, _Backoff] = {}
        self._relieved: set[JobKey] = set()
        """Jobs of which a satellite has begun to train since the last grant that was not used."""

    def failed(self, grant: Grant, reason: FailureReason, *, ran: bool, now: float) -> None:
        """A grant ended before its time; `ran`: the cluster has shown its satellite running."""
        if reason in NO_FAULT and ran:
            self._spare(grant, now)
            return
        job = self._jobs.get(grant.job, _Backoff())
        if reason is FailureReason.REFUSED:
            self._jobs[grant.job] = job.again(now)
            return
        node = self._nodes.get((grant.job, grant.node), _Backoff())
        self._nodes[grant.job, grant.node] = node.again(now)
        until = max(job.until, grant.since_at + FIRST_S)
        if ran:
            self._jobs[grant.job] = _Backoff(job.failures, until)
        else:
            self._jobs[grant.job] = job.after_unused(until, now)
            self._relieved.discard(grant.job)

    def _spare(self, grant: Grant, now: float) -> None:
        """Preempted: no fault of the node's, but it is left to the job that it was taken for.

        Slow: the GPU itself is remembered for longer, and for every job.
        """
        here = self._nodes.get((grant.job, grant.node), _Backoff())
        self._nodes[grant.job, grant.node] = _Backoff(here.failures, max(here.until, now + FIRST_S))

    def trains(self, grant: Grant) -> None:
        """Its satellite has begun to train."""
        self._relieved.add(grant.job)
        self._nodes.pop((grant.job, grant.node), None)

    def relieve(self, key: JobKey) -> None:
        """No grant of this job is on its way: if one has trained, its failures in a row are over."""
        if key in self._relieved:
            self._relieved.discard(key)
            self._jobs.pop(key, None)

    def job_until(self, key: JobKey) -> float:
        """When the job may be tried again; 0 if it may."""
        return self._jobs.get(key, _Backoff()).until

    def nodes_until(self, key: JobKey, now: float) -> dict[str, float]:
        """The nodes on which the job rests, and until when."""
        return {
            node: backoff.until
            for (job, node), backoff in self._nodes.items()
            if job == key and backoff.until > now
        }

    def keep(self, running: Container[JobKey]) -> None:
        """Forget the jobs that run no longer."""
        self._nodes = {place: backoff for place, backoff in self._nodes.items() if place[0] in running}
        self._jobs = {key: backoff for key, backoff in self._jobs.items() if key in running}
        self._relieved = {key for key in self._relieved if key in running}
