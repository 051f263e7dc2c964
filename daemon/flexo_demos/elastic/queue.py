"""A cluster's own view of its jobs at each poll: how many GPUs each job held on which node. Pure.

The demo does not ask flexod, because the demo is to show flexod's work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

HOLDING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"})
"""States in which a job holds its GPUs, in Slurm's words."""
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED"})


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job, waiting, running or ended, as the cluster shows it."""

    job_id: int
    state: str
    reason: str
    gpus: tuple[tuple[str, int], ...]
    """Pairs (node, GPUs that the job holds there)."""
    satellite: bool

    @property
    def runs(self) -> bool:
        """True if the job has started and not ended."""
        return self.state == "RUNNING"

    @property
    def over(self) -> bool:
        """True if the job has ended and the cluster has nothing left to do for it."""
        return self.state not in HOLDING | _WAITING

    @property
    def gpus_held(self) -> int:
        """GPUs that the job holds on all its nodes."""
        return sum(count for _, count in self.gpus)

    @property
    def nodes(self) -> str:
        """Nodes on which the job holds GPUs, as a text."""
        return ", ".join(node for node, _ in self.gpus)


@dataclass(frozen=True, slots=True)
class Look:
    """One poll: all jobs of the cluster at one instant. `at` is in seconds since the epoch."""

    at: float
    jobs: tuple[QueuedJob, ...]

    def job(self, job_id: int) -> QueuedJob | None:
        """The job `job_id`; None if the cluster does not know it."""
        return next((job for job in self.jobs if job.job_id == job_id), None)

    @property
    def satellites(self) -> tuple[QueuedJob, ...]:
        """Satellites that wait, run or are about to end."""
        return tuple(job for job in self.jobs if job.satellite and not job.over)

    def held_on(self, node: str) -> int:
        """GPUs of `node` that jobs hold."""
        return sum(count for job in self.jobs for name, count in job.gpus if name == node)


def room_for(look: Look, nodes: Sequence[str], gpus_per_node: int, needed: int) -> int:
    """Number of `nodes`, of `gpus_per_node` GPUs each, on which `needed` GPUs are idle."""
    return sum(1 for node in nodes if gpus_per_node - look.held_on(node) >= needed)


def node_map(look: Look, nodes: Sequence[str], gpus_per_node: int, letters: dict[int, str]) -> str:
    """A map with one letter for each GPU: `t1 E··  t2 eee  t3 ···`.

    `letters`: letter of a job. Other jobs are `e` (a satellite) or `?`.
    """
    held: dict[str, Counter[str]] = {node: Counter() for node in nodes}
    for job in look.jobs:
        letter = letters.get(job.job_id, "e" if job.satellite else "?")
        for node, count in job.gpus:
            if node in held:
                held[node][letter] += count
    return "  ".join(
        f"{node} {''.join(letter * count for letter, count in sorted(held[node].items())):·<{gpus_per_node}}"
        for node in nodes
    )


@dataclass(frozen=True, slots=True)
class Holdings:
    """GPUs that each of the demo's jobs held over time. All tuples have one entry for each poll."""

    at: tuple[float, ...]
    base: tuple[int, ...]
    satellites: tuple[int, ...]
    rigid: tuple[int, ...]


def holdings(looks: Sequence[Look], base_id: int, rigid_id: int | None) -> Holdings:
    """The holdings at each poll, for the picture."""
    return Holdings(
        at=tuple(look.at for look in looks),
        base=tuple(_held(look, base_id) for look in looks),
        satellites=tuple(sum(job.gpus_held for job in look.jobs if job.satellite) for look in looks),
        rigid=tuple(0 if rigid_id is None else _held(look, rigid_id) for look in looks),
    )


def _held(look: Look, job_id: int) -> int:
    job = look.job(job_id)
    return job.gpus_held if job else 0
