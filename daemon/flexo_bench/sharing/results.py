"""The figures of this benchmark, and how they are judged. All functions are pure."""

from __future__ import annotations

import hashlib
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexo_bench.elastic_ddp.results import Sample

UNTHROTTLED, DUTY, GATE = WAYS = ("unthrottled", "duty", "gate")
CONFIDENCE_T = 1.96
LAYER = Path(__file__).resolve().parents[3] / "horovod_elastic" / "sharing"
MOST_WIDTH = 0.01
"""An interval of CPU time that is wider decides nothing."""
MOST_OVERHEAD = 0.005
TRIM, GROWTH = "trim_ms", "growth_ms"
MEMORY_GOALS = (("16 GB of cache back in 17 ms", TRIM, 17.0), ("growth by 16 GB in 115 ms", GROWTH, 115.0))
"""Goals of docs/evidence/sharing.md: in words, the measured thing, and its bound."""
LEAST_STEPS = 100
"""Fewer steps have no 99th percentile."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One way in one round. `guarantee_slowdown`: over the same round alone. `opportunistic_share`: of
    its own speed. `steps_s`: the durations of the guarantee job's steps; `alone_s`: in the same round alone.
    """

    guarantee_slowdown: float
    opportunistic_share: float
    steps_s: tuple[float, ...] = ()
    alone_s: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The turn in the file. `longest_step_s` shows which turns make the 99th percentile."""
        return {
            "guarantee_slowdown": self.guarantee_slowdown,
            "opportunistic_share": self.opportunistic_share,
            "steps": len(self.steps_s),
            "longest_step_s": max(self.steps_s, default=None),
        }


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU seconds of a step with the layer, unshared, over those without it, minus 1; of each pair of
    processes that was started."""

    starts: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None for fewer than six starts."""
        if len(self.starts) < 6:
            return None
        middle = statistics.fmean(self.starts)
        half = CONFIDENCE_T * statistics.stdev(self.starts) / math.sqrt(len(self.starts))
        return middle - half, middle + half

    def verdict(self) -> str:
        """Reached, missed, or why neither."""
        if self.interval is None:
            return "undecided: too few starts"
        low, high = self.interval
        if high - low > MOST_WIDTH:
            return f"undecided: the interval is {high - low:.1%} wide"
        return "reached" if low <= MOST_OVERHEAD else "missed"


@dataclass
class Figures:
    """All results so far. `pairs`: by name and way, the turns. `memory`: milliseconds, by what took them."""

    device: str
    torch: str
    command: str
    date: str
    pairs: dict[str, dict[str, list[Turn]]] = field(default_factory=dict)
    overhead: Overhead = Overhead(())
    memory: dict[str, list[float]] = field(default_factory=dict)
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

    def p99(self, pair: str, way: str) -> float | None:
        """How much longer the 99th percentile of the guarantee job's steps is than alone, over all rounds.

        None for too few steps. A turn has some 20 steps, so single turns have no such percentile.
        """
        turns = self._turns(pair, way)
        steps = [step for turn in turns for step in turn.steps_s]
        alone = [step for turn in turns for step in turn.alone_s]
        if min(len(steps), len(alone)) < LEAST_STEPS:
            return None
        return statistics.quantiles(steps, n=100)[-1] / statistics.quantiles(alone, n=100)[-1] - 1

    def _turns(self, pair: str, way: str) -> list[Turn]:
        return self.pairs.get(pair, {}).get(way, [])

    def ordered(self, pair: str) -> bool:
        """Whether the guarantee job loses most unthrottled, less to the duty cycle, and least to the
        gate.
        """
        losses = [self.slowdowns(pair, way).median for way in WAYS]
        return None not in losses and losses == sorted(losses, reverse=True) and len(set(losses)) == 3  # type: ignore[type-var]

    def memory_verdicts(self) -> dict[str, str]:
        """The goals on memory that were measured, each with its verdict."""
        found = {
            goal: (Sample(tuple(self.memory.get(name, ()))).median, most) for goal, name, most in MEMORY_GOALS
        }
        return {
            goal: f"{'reached' if median <= most else 'missed'}: {median:.1f} ms"
            for goal, (median, most) in found.items()
            if median is not None
        }

    def as_json(self) -> dict[str, Any]:
        """The file's content."""
        pairs = {
            pair: {
                way: {
                    "guarantee_slowdown": self.slowdowns(pair, way).median,
                    "opportunistic_share": self.share(pair, way),
                    "guarantee_slowdown_interval": self.slowdowns(pair, way).interval,
                    "p99": self.p99(pair, way),
                    "rounds": [turn.as_json() for turn in turns],
                }
                for way, turns in ways.items()
            }
            for pair, ways in self.pairs.items()
        }
        middle = statistics.fmean(self.overhead.starts) if self.overhead.starts else None
        return {
            "device": self.device,
            "torch": self.torch,
            "date": self.date,
            "command": self.command,
            "layer_hash": layer_hash(),
            "overhead_unshared": middle,
            "overhead_unshared_interval": self.overhead.interval,
            "overhead_unshared_verdict": self.overhead.verdict(),
            "overhead_unshared_starts": self.overhead.starts,
            "pairs": pairs,
            "ordered": {pair: self.ordered(pair) for pair in self.pairs},
            "memory": {
                name: {"median": Sample(tuple(values)).median, "rounds": values}
                for name, values in self.memory.items()
            },
            "goals": self.goals | self.memory_verdicts(),
        }


def layer_hash(folder: Path = LAYER) -> str:
    """The first 16 digits of a hash of the layer's source: figures hold for the code that they were
    measured with.
    """
    digest = hashlib.sha256()
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.c"))):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
