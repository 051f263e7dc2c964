"""Jobs that run, and that YARN does not show for a while: they count as running.

After a restart of the ResourceManager, or after another one has become active, each node comes back when its
NodeManager next looks for it: every 30 s by default. Its containers run all the time. Bases are incomplete,
too, while YARN starts another ApplicationMaster, or replaces a container.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from flexo.model.queue import JobState, QueuedJob

PATIENCE_S: Final = 300.0
"""How long a base may be incomplete, and a satellite's node away. NodeManagers took 120 s to leave a
ResourceManager that had stopped to answer (seen on 3.5.0)."""
RETURNS_S: Final = 5.0
"""How long a node's containers may be missing after its return, and a base's until another replaces it."""


class RememberedJobs:
    """The bases that were complete, and the satellites that ran. Times are those of time.monotonic."""

    def __init__(self) -> None:
        self._bases: dict[str, QueuedJob] = {}
        """By identifier."""
        self._satellites: dict[str, QueuedJob] = {}
        self._absent_bases, self._absent_satellites = _Absences(), _Absences()

    def base(
        self, job: QueuedJob, containers: int, *, shows: bool, nodes: Collection[str], now: float
    ) -> QueuedJob:
        """A base as it is or, if YARN cannot show all of it, as it was.

        `containers`: those of its gang that YARN shows. They tell a job that has begun anew. `shows`: whether
        YARN shows its containers. `nodes`: those that are back.
        """
        name = job.identifier
        if job.state is JobState.RUNNING:
            self._bases[name] = job
            self._absent_bases.forget(name)
        elif (known := self._bases.get(name)) is not None:
            began_anew = containers > 0 and job.restart_count != known.restart_count
            hidden = not shows or not set(known.nodes) <= set(nodes)
            if not began_anew and self._absent_bases.is_awaited(name, hidden, now, replaced=True):
                return known
            del self._bases[name]
            self._absent_bases.forget(name)
        return job

    def keep_bases(self, identifiers: Collection[str]) -> None:
        """Forget all bases but these."""
        for gone in self._bases.keys() - set(identifiers):
            del self._bases[gone]
            self._absent_bases.forget(gone)

    def satellites(
        self, shown: Sequence[QueuedJob], shows: Mapping[str, bool], nodes: Collection[str], now: float
    ) -> list[QueuedJob]:
        """The satellites that YARN shows, and those that it cannot show.

        `shows`: the flex applications, and whether YARN shows their containers. `nodes`: those that are back.
        """
        found = {job.identifier: job for job in shown}
        for name, job in self._satellites.items():
            if name in found:
                self._absent_satellites.forget(name)
                continue
            application, (node,) = job.time_limit_id, job.nodes
            hidden = not shows.get(application, True) or node not in nodes
            if application in shows and self._absent_satellites.is_awaited(name, hidden, now):
                found[name] = job
            else:
                self._absent_satellites.forget(name)
        self._satellites = found
        return list(found.values())


class _Absences:
    """How long YARN has not shown jobs, by identifier."""

    def __init__(self) -> None:
        self._hidden_since: dict[str, float] = {}
        """The first look at which YARN could not show it."""
        self._missing_since: dict[str, float] = {}
        """The first look at which YARN could, and did not."""

    def is_awaited(self, name: str, hidden: bool, now: float, *, replaced: bool = False) -> bool:
        """Whether a job that is not shown may be shown again.

        `hidden`: YARN cannot show it. `replaced`: its containers may be replaced by others.
        """
        if hidden:
            self._missing_since.pop(name, None)
            return now - self._hidden_since.setdefault(name, now) < PATIENCE_S
        if name not in self._hidden_since and not replaced:
            return False
        return now - self._missing_since.setdefault(name, now) < RETURNS_S

    def forget(self, name: str) -> None:
        """The job is shown, or does not exist any more."""
        self._hidden_since.pop(name, None)
        self._missing_since.pop(name, None)
