"""What the check of a script finds, as data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Tier(enum.Enum):
    """What leads the training loop of a script. flexo resizes each of them in another way."""

    DDP = "plain DDP"
    HOROVOD = "Horovod"
    TRAINER = "HF Trainer"
    LIGHTNING = "Lightning"
    ACCELERATE = "Accelerate"
    DECLARED = "declared state"
    """A loop of the script's own, whose state it declares by flexo.elastic(...)."""
    UNKNOWN = "unknown"


class Level(enum.Enum):
    """How much a finding matters."""

    KEEPS = "keeps its size"
    """The job stays at the size of its base, or must not be elastic."""
    MAY_KEEP = "may keep its size"
    """The same, where a condition in the script holds that the check does not know."""
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Finding:
    """A construct in a script. `file`: as the user would name it; "" for the script's arguments."""

    file: str
    line: int
    rule: str
    """A short name that never changes."""
    what: str
    """What the construct is, and what to do instead."""
    level: Level = Level.KEEPS

    def __lt__(self, other: Finding) -> bool:
        """In the order of files and lines."""
        return (self.file, self.line, self.rule) < (other.file, other.line, other.rule)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    script: str
    files: tuple[str, ...]
    """The files that were read: the script, and modules beside it."""
    tier: Tier
    findings: tuple[Finding, ...]

    @property
    def elastic(self) -> bool:
        """Whether nothing was found that keeps the job at its base's size."""
        return not any(finding.level is Level.KEEPS for finding in self.findings)
