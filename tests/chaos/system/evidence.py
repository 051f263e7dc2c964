"""Everything that is known of a run when it is over; flexod's own word is not among it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.checker import Record
from chaos.system.looks import Look
from chaos.system.plan import OF_A_JOB, Deed, Elastic, Ordinary, Target


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that was carried out. Times in seconds since the epoch."""

    at: float
    until: float
    """It answers again, is continued, or is connected again; `at` for a process of a job that was killed."""
    target: Target
    deed: Deed
    what: str
    """Which process, node or connection."""
    job_id: int = 0
    """The elastic job that it belongs to, if to one."""
    orphaned: bool = False
    """Nobody but the victim held the model: its job may begin again."""

    @property
    def of_a_job(self) -> bool:
        """A process of an elastic job was hit."""
        return self.target in OF_A_JOB


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that Slurm has accepted."""

    what: Elastic | Ordinary
    job_id: int
    at: float
    """Seconds since the epoch, before the command was started."""

    @property
    def name(self) -> str:
        """In the plan, and in Slurm."""
        return self.what.name


@dataclass(frozen=True, slots=True)
class Use:
    """A process used a GPU from its first to its last sign of life, by its own log."""

    who: str
    slurm_job: int
    node: str
    gpu: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Training:
    """What the workers of one elastic job have logged."""

    record: Record
    stopped_at: float
    """It was told to end."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run."""

    looks: tuple[Look, ...]
    strikes: tuple[Strike, ...] = ()
    submitted: tuple[Submitted, ...] = ()
    training: Mapping[int, Training] = field(default_factory=dict)
    """By job id."""
    ordinary_ends: Mapping[int, float] = field(default_factory=dict)
    """When the scripts of ordinary jobs ended, as they wrote it down, by job id. Seconds since the epoch."""
    uses: tuple[Use, ...] = ()
    deaths: tuple[str, ...] = ()
    """Daemons that ended without having been killed by us."""
    remains: tuple[str, ...] = ()
    """What is left of jobs a while after their end."""

    def elastic(self) -> list[tuple[Elastic, Submitted]]:
        """The elastic jobs."""
        return [(each.what, each) for each in self.submitted if isinstance(each.what, Elastic)]

    def ordinary(self) -> list[tuple[Ordinary, Submitted]]:
        """All others."""
        return [(each.what, each) for each in self.submitted if isinstance(each.what, Ordinary)]


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen, and did."""

    invariant: str
    what: str
