"""The steps of a training, as its workers have logged them (examples/digits/train_ddp.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TRAIN_SAMPLES, BATCH = 1797, 32
"""Samples of an epoch, and of a step of one worker."""
STEPS = -(-TRAIN_SAMPLES // BATCH)
"""Steps of an epoch of one worker."""


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


def missing_samples(steps: Iterable[Step], epochs: int) -> int:
    """The number of samples that no step of the first `epochs` epochs has used, over all epochs.

    A worker that comes anew logs a few steps for practice as well. So repeated samples show nothing;
    `steps_taken` does.
    """
    used = {(step.epoch, sample) for step in steps for sample in step.samples}
    return sum((epoch, sample) not in used for epoch in range(epochs) for sample in range(TRAIN_SAMPLES))


def steps_taken(folder: Path) -> int | None:
    """The steps that the final model has taken, by its learning-rate schedule; None: there is none."""
    try:
        return int(json.loads((folder / "result.json").read_text())["steps"])
    except (OSError, ValueError, KeyError):
        return None
