"""The description of a simulation, in sentences, for a report beside its figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """The description of a simulation."""

    facts: tuple[str, ...]
    """The jobs, the cluster, the rules: one sentence each."""
    omissions: tuple[str, ...]
    """The parts of the file that were left out."""
    command: str
    """The command that repeats the simulation."""
    elastic: tuple[str, ...] = ()
    """Which jobs were made elastic, and how they scale."""
