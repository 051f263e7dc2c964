"""Judges a run by what the observer has noted: the samples that were used, and the loss at the end. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SEEDS = 5
_T = 4.604
"""The 99.5% quantile of Student's t distribution with SEEDS - 1 degrees of freedom."""
_LAST = 0.25
"""The part of the steps, at the end of a run, whose mean loss counts."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one worker that has had effect."""

    time: float
    world: int
    """The generation; 1 without flexo."""
    rank: int
    size: int
    pid: int
    rows: tuple[str, ...]
    """A digest of each sample that the model was given in training."""
    losses: tuple[float, ...]


def steps_in(log: Path) -> list[Step]:
    """All steps with effect, by time."""
    found = []
    for path in log.glob("*.jsonl"):
        text = path.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            event = json.loads(line)
            del event["event"]
            if event["world"]:
                found.append(
                    Step(**{**event, "rows": tuple(event["rows"]), "losses": tuple(event["losses"])})
                )
    return sorted(found, key=lambda step: step.time)


def final_loss(steps: Sequence[Step]) -> float:
    """The mean loss of the samples of the last quarter of the steps."""
    last = [step for step in steps[-round(_LAST * len(steps)) :] if step.losses]
    weights = [max(1, len(step.rows)) for step in last]
    return sum(w * statistics.fmean(s.losses) for w, s in zip(weights, last, strict=True)) / sum(weights)


def prediction_interval(losses: Sequence[float]) -> tuple[float, float]:
    """Where the loss of one more run lies, with a probability of 99%, after SEEDS runs."""
    middle, deviation = statistics.fmean(losses), statistics.stdev(losses)
    reach = _T * deviation * math.sqrt(1 + 1 / len(losses))
    return middle - reach, middle + reach


@dataclass(frozen=True, slots=True)
class Samples:
    """How the samples of an elastic run compare with those of runs at a fixed size."""

    missing: int
    """Uses of samples too few."""
    repeated: int
    """Uses of samples too many."""
    unlogged: int
    """The samples of a step that a worker may have taken and not noted, because it was killed."""


def compare(fixed: Sequence[Sequence[Step]], steps: Sequence[Step], killed: int) -> Samples:
    """Compare the samples of elastic `steps` with those of the runs at a fixed size."""
    counts = [_used(run) for run in fixed]
    used = _used(steps)
    least = {row: min(each[row] for each in counts) for row in set().union(*counts)}
    most = {row: max(each[row] for each in counts) for row in least}
    missing = sum(max(0, number - used[row]) for row, number in least.items())
    repeated = sum(max(0, number - most.get(row, 0)) for row, number in used.items())
    return Samples(missing, repeated, _unlogged(steps, killed))


def _used(steps: Sequence[Step]) -> Counter[str]:
    return Counter(row for step in steps for row in step.rows)


def _unlogged(steps: Sequence[Step], killed: int) -> int:
    own = [step for step in steps if step.pid == killed]
    if not own:
        return 0
    others = [step for step in steps if step.world == own[-1].world and step.pid != killed]
    taken = Counter(step.pid for step in others)
    logged = sum(step.world == own[-1].world for step in own)
    return max(map(len, (step.rows for step in own))) if max(taken.values(), default=0) > logged else 0
