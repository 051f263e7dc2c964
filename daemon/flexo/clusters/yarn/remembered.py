"""Jobs that run, and that YARN does not show for a while: they count as running.

After a restart of the ResourceManager, or after another one has become active, each node comes back when its
NodeManager next looks for it: every 30 s by default. Its containers run all the time. Bases are incomplete,
too, while YARN starts another ApplicationMaster, or replaces a container.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from flexo.model.queue import JobState, QueuedJob

PATIENCE_S: Final = 300.0
"""How long a base may be incomplete, and a satellite's node away. NodeManagers took 120 s to leave a
ResourceManager that had stopped to answer (seen on 3.5.0)."""
RETURNS_S: Final = 5.0
"""How long after a node's return its containers may be missing."""


class RememberedJobs:
    """The bases that were complete, and the satellites that ran. Times are those of time.monotonic."""

    def __init__(self) -> None:
        self._bases: dict[str, QueuedJob] = {}
        """By identifier."""
        self._incomplete_since: dict[str, float] = {}
        self._satellites: dict[str, QueuedJob] = {}
        self._hidden_since: dict[str, float] = {}
        """By identifier of a satellite: the first look at which YARN could not show it."""
        self._missing_since: dict[str, float] = {}
        """Of those: the first look at which YARN could, and did not."""

    def base(self, job: QueuedJob, containers: int, now: float) -> QueuedJob:
        """A base as it is or, if it is incomplete for less than PATIENCE_S, as it was.

        `containers`: those of its gang that YARN shows. They tell a job that has begun anew.
        """
        known = self._bases.get(job.identifier)
        if job.state is JobState.RUNNING:
            self._bases[job.identifier] = job
            self._incomplete_since.pop(job.identifier, None)
            return job
        began_anew = known is not None and containers > 0 and job.restart_count != known.restart_count
        if known is None or began_anew:
            return job
        since = self._incomplete_since.setdefault(job.identifier, now)
        return known if now - since < PATIENCE_S else job

    def keep_bases(self, identifiers: Collection[str]) -> None:
        """Forget all bases but these."""
        _keep(self._bases, identifiers)
        _keep(self._incomplete_since, identifiers)

    def satellites(
        self, shown: Sequence[QueuedJob], shows: Mapping[str, bool], nodes: Collection[str], now: float
    ) -> list[QueuedJob]:
        """The satellites that YARN shows, and those that it cannot show.

        `shows`: the flex applications, and whether YARN shows their containers. `nodes`: those that are back.
        """
        found = {job.identifier: job for job in shown}
        for identifier, job in self._satellites.items():
            if identifier not in found and job.time_limit_id in shows:
                is_hidden = not shows[job.time_limit_id] or job.nodes[0] not in nodes
                if self._is_awaited(identifier, is_hidden, now):
                    found[identifier] = job
        self._satellites = found
        still = found.keys() - {job.identifier for job in shown}
        _keep(self._hidden_since, still)
        _keep(self._missing_since, still)
        return list(found.values())

    def _is_awaited(self, identifier: str, is_hidden: bool, now: float) -> bool:
        """Whether a satellite that is not shown may be shown again."""
        if is_hidden:
            self._missing_since.pop(identifier, None)
            return now - self._hidden_since.setdefault(identifier, now) < PATIENCE_S
        if identifier not in self._hidden_since:
            return False
        return now - self._missing_since.setdefault(identifier, now) < RETURNS_S


def _keep(table: dict[str, Any], identifiers: Collection[str]) -> None:
    """Forget all jobs but these."""
    for gone in table.keys() - set(identifiers):
        del table[gone]
