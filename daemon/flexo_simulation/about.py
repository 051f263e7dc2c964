"""What has been simulated, in sentences: what a report says beside its figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """What has been simulated."""

    facts: tuple[str, ...]
    """The jobs, the cluster, the rules: one sentence each."""
    omissions: tuple[str, ...]
    """What of the file was left out."""
    command: str
    """Typed again, it gives the same."""
