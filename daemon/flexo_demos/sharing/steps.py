"""The steps of a training, as its workers have logged them (examples/digits/train_ddp.py)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TRAIN_SAMPLES = 1797
"""Samples of an epoch."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one worker. Times are seconds since the epoch."""

    began: float
    ended: float
    epoch: int
    samples: tuple[int, ...]


def read_steps(folder: Path) -> tuple[Step, ...]:
    """All steps in the logs of a folder, by their ends. The last line of a killed worker may be cut."""
    steps = []
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            steps.append(Step(told["began"], told["ended"], told["epoch"], tuple(told["samples"])))
    return tuple(sorted(steps, key=lambda step: step.ended))


def between(steps: Iterable[Step], first: float, last: float) -> tuple[Step, ...]:
    """The steps within a stretch of time."""
    return tuple(step for step in steps if step.began >= first and step.ended <= last)


def median_s(steps: Sequence[Step]) -> float | None:
    """The median time of a step in seconds; None without steps."""
    return median(step.ended - step.began for step in steps) if steps else None


@dataclass(frozen=True, slots=True)
class Uses:
    """How often samples were used in whole epochs, beyond the one time that is right."""

    epochs: int
    missing: int
    repeated: int


def uses_of(steps: Iterable[Step], epochs: int) -> Uses:
    """Count the uses of samples in each of `epochs` epochs."""
    counts: Counter[tuple[int, int]] = Counter()
    for step in steps:
        counts.update((step.epoch, sample) for sample in step.samples)
    missing = sum(counts[epoch, sample] == 0 for epoch in range(epochs) for sample in range(TRAIN_SAMPLES))
    repeated = sum(max(0, count - 1) for count in counts.values())
    return Uses(epochs, missing, repeated)
