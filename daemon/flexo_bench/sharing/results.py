"""The figures of this benchmark, and how they are judged. All functions are pure."""

from __future__ import annotations

import hashlib
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flexo_bench.elastic_ddp.results import Sample

UNTHROTTLED, DUTY, GATE = WAYS = ("unthrottled", "duty", "gate")
CONFIDENCE_T = 1.96
LAYER = Path(__file__).resolve().parents[3] / "horovod_elastic" / "sharing"
MOST_WIDTH = 0.01
"""An interval of CPU time that is wider decides nothing."""
MOST_OVERHEAD = 0.005


@dataclass(frozen=True, slots=True)
class Turn:
    """One way in one round. `guarantee_slowdown`: over the same round alone. `opportunistic_share`: of
    its own speed.
    """

    guarantee_slowdown: float
    opportunistic_share: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU seconds of a step with the layer, unshared, over those without it, minus 1; of each round."""

    rounds: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None for fewer than six rounds."""
        if len(self.rounds) < 6:
            return None
        middle = statistics.fmean(self.rounds)
        half = CONFIDENCE_T * statistics.stdev(self.rounds) / math.sqrt(len(self.rounds))
        return middle - half, middle + half

    def verdict(self) -> str:
        """Reached, missed, or why neither."""
        if self.interval is None:
            return "undecided: too few rounds"
        low, high = self.interval
        if high - low > MOST_WIDTH:
            return f"undecided: the interval is {high - low:.1%} wide"
        return "reached" if low <= MOST_OVERHEAD else "missed"


@dataclass
class Figures:
    """All results so far. `pairs`: by name and way, the turns."""

    device: str
    torch: str
    command: str
    date: str
    pairs: dict[str, dict[str, list[Turn]]] = field(default_factory=dict)
    overhead: Overhead = Overhead(())
    goals: dict[str, str] = field(default_factory=dict)

    def add(self, pair: str, way: str, turn: Turn) -> None:
        """Add one turn."""
        self.pairs.setdefault(pair, {}).setdefault(way, []).append(turn)

    def slowdowns(self, pair: str, way: str) -> Sample:
        """The guarantee job's slowdowns, one for each round."""
        return Sample(tuple(turn.guarantee_slowdown for turn in self._turns(pair, way)))

    def share(self, pair: str, way: str) -> float | None:
        """The median of the opportunistic job's share over all rounds."""
        return Sample(tuple(turn.opportunistic_share for turn in self._turns(pair, way))).median

    def _turns(self, pair: str, way: str) -> list[Turn]:
        return self.pairs.get(pair, {}).get(way, [])

    def ordered(self, pair: str) -> bool:
        """Whether the guarantee job loses most unthrottled, less to the duty cycle, and least to the
        gate.
        """
        losses = [self.slowdowns(pair, way).median for way in WAYS]
        return None not in losses and losses == sorted(losses, reverse=True) and len(set(losses)) == 3  # type: ignore[type-var]

    def as_json(self) -> dict[str, Any]:
        """The file's content."""
        pairs = {
            pair: {
                way: {
                    "guarantee_slowdown": self.slowdowns(pair, way).median,
                    "opportunistic_share": self.share(pair, way),
                    "guarantee_slowdown_interval": self.slowdowns(pair, way).interval,
                    "rounds": [asdict(turn) for turn in turns],
                }
                for way, turns in ways.items()
            }
            for pair, ways in self.pairs.items()
        }
        middle = statistics.fmean(self.overhead.rounds) if self.overhead.rounds else None
        return {
            "device": self.device,
            "torch": self.torch,
            "date": self.date,
            "command": self.command,
            "layer_hash": layer_hash(),
            "overhead_unshared": middle,
            "overhead_unshared_interval": self.overhead.interval,
            "overhead_unshared_verdict": self.overhead.verdict(),
            "pairs": pairs,
            "ordered": {pair: self.ordered(pair) for pair in self.pairs},
            "goals": self.goals,
        }


def layer_hash(folder: Path = LAYER) -> str:
    """The first 16 digits of a hash of the layer's source: figures hold for the code that they were
    measured with.
    """
    digest = hashlib.sha256()
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.c"))):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
