"""Computes how long a job, and a node for a job, rest after failed grants.

After the n-th failure in a row, nothing is tried for 60, 120, ... seconds, at most 900.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from flexo.model.elastic import FailureReason, Grant
from flexo.model.queue import JobKey

FIRST_S: Final = 60.0
"""The first rest, in seconds. It is also the least time from a failed grant to the next grant of its job."""
LONGEST_S: Final = 900.0
_DOUBLINGS: Final = 4
"""The most doublings: then a rest is LONGEST_S. Without a bound, many failures would overflow a float."""

NO_FAULT: Final = frozenset({FailureReason.PREEMPTED, FailureReason.SLOW_GPU})
"""Reasons after which the job does not rest, because it has done nothing wrong."""


@dataclass(frozen=True, slots=True)
class _Backoff:
    failures: int = 0
    until: float = 0.0

    def again(self, now: float) -> _Backoff:
        wait = min(LONGEST_S, FIRST_S * 2.0 ** min(self.failures, _DOUBLINGS))
        return _Backoff(self.failures + 1, now + wait)

    def after_refused(self, now: float) -> _Backoff:
        """The backoff after a grant whose satellite the cluster refused."""
        if self.until > now:  # this grant was issued together with others that failed
            return _Backoff(self.failures, max(self.until, now + FIRST_S))
        return self.again(now)

    def after_unused(self, until: float, now: float) -> _Backoff:
        """The backoff after a grant whose satellite never ran, or whose workers failed. From the second such
        grant in a row on, the job rests longer."""
        if self.until > now:  # this grant was issued together with others that failed
            return _Backoff(self.failures, until)
        longer = _Backoff(self.failures - 1, 0.0).again(now).until if self.failures else 0.0
        return _Backoff(self.failures + 1, max(longer, until))


class Backoffs:
    """The backoffs of all running jobs. `now` and returned times are seconds since the epoch."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[JobKey, str], _Backoff] = {}
        self._jobs: dict[JobKey, _Backoff] = {}
        self._relieved: set[JobKey] = set()
        """Jobs with a satellite that has begun to train since their last unused grant."""

    def failed(self, grant: Grant, reason: FailureReason, *, ran: bool, now: float) -> None:
        """Note that a grant ended before its time. `ran`: the cluster has shown its satellite running."""
        if reason in NO_FAULT and ran:
            self._spare(grant, now)
            return
        job = self._jobs.get(grant.job, _Backoff())
        if reason is FailureReason.REFUSED:
            self._jobs[grant.job] = job.after_refused(now)
            return
        node = self._nodes.get((grant.job, grant.node), _Backoff())
        self._nodes[grant.job, grant.node] = node.again(now)
        until = max(job.until, grant.since_at + FIRST_S)
        if ran and reason is not FailureReason.WORKERS_FAILED:  # which follows the job to other nodes
            self._jobs[grant.job] = _Backoff(job.failures, until)
        else:
            self._jobs[grant.job] = job.after_unused(until, now)
            self._relieved.discard(grant.job)

    def _spare(self, grant: Grant, now: float) -> None:
        """Let the node rest for this job, but not the job itself.

        If the satellite was preempted, the node is left to the job for which it was taken. If its GPU is
        slow, the GPU is remembered elsewhere, for longer and for every job.
        """
        here = self._nodes.get((grant.job, grant.node), _Backoff())
        self._nodes[grant.job, grant.node] = _Backoff(here.failures, max(here.until, now + FIRST_S))

    def trains(self, grant: Grant) -> None:
        """Note that the satellite of `grant` has begun to train."""
        self._relieved.add(grant.job)
        self._nodes.pop((grant.job, grant.node), None)

    def relieve(self, key: JobKey) -> None:
        """Note that no grant of this job is under way. If one has trained, its failures in a row are over."""
        if key in self._relieved:
            self._relieved.discard(key)
            self._jobs.pop(key, None)

    def job_until(self, key: JobKey) -> float:
        """The time from which the job may be tried again; 0 if it may be tried now."""
        return self._jobs.get(key, _Backoff()).until

    def nodes_until(self, key: JobKey, now: float) -> dict[str, float]:
        """The nodes that rest for the job, each with the time until when."""
        return {
            node: backoff.until
            for (job, node), backoff in self._nodes.items()
            if job == key and backoff.until > now
        }

    def keep(self, running: Container[JobKey]) -> None:
        """Forget the jobs that are not `running` any more."""
        self._nodes = {place: backoff for place, backoff in self._nodes.items() if place[0] in running}
        self._jobs = {key: backoff for key, backoff in self._jobs.items() if key in running}
        self._relieved = {key for key in self._relieved if key in running}
