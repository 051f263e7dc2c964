"""Counts the mini-batches and samples of a training, from what its workers have logged.

Rank 0 is not killed, so its steps are the history. A worker that comes later takes a few steps for practice
before it joins. They count for nothing, and rank 0 does not take a step of their number in the same time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

TRAIN_SAMPLES, BATCH = 1797, 32
"""Samples of an epoch, and of a mini-batch of one worker."""


@dataclass(frozen=True, slots=True)
class Line:
    """One step of one worker (examples/digits/train_ddp.py). Times are seconds since the epoch."""

    pid: int
    rank: int
    size: int
    epoch: int
    step: int
    """Its number: the steps that the model has taken, with this one."""
    began: float
    ended: float
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a training has come to."""

    steps: int
    batches_lost: int
    """Mini-batches that rank 0 began again, or left out."""
    samples_repeated: int
    """Uses of a sample beyond its first in an epoch, without those with which PyTorch's sampler fills an
    epoch up."""
    samples_missing: int
    """Samples of epochs that are over, which no worker has logged."""
    epochs: int
    """Epochs that are over."""


def read_lines(folder: Path) -> tuple[Line, ...]:
    """All lines in the logs of a folder, by their ends. A worker may be in the middle of its last line."""
    found = []
    for path in folder.glob("*.jsonl"):
        pid = int(path.stem.rpartition("-")[2])
        text = path.read_text()
        for each in text[: text.rfind("\n") + 1].splitlines():
            found.append(_line(pid, json.loads(each)))
    return tuple(sorted(found, key=lambda line: line.ended))


def _line(pid: int, told: Mapping[str, Any]) -> Line:
    plain = {name: told[name] for name in ("rank", "size", "epoch", "step", "began", "ended")}
    return Line(pid=pid, samples=tuple(told["samples"]), **plain)


def joined(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines that count: those of steps that rank 0 took in the same time."""
    known = tuple(lines)
    leading: dict[int, list[Line]] = defaultdict(list)
    for line in known:
        if line.rank == 0 and line.pid == _first(known):
            leading[line.step].append(line)
    return tuple(line for line in known if any(_meet(line, other) for other in leading[line.step]))


def _first(lines: Sequence[Line]) -> int:
    """The process that has rank 0 from the beginning; 0 without lines."""
    return next((line.pid for line in lines if line.rank == 0), 0)


def _meet(one: Line, other: Line) -> bool:
    return one.began <= other.ended and other.began <= one.ended


def count(lines: Iterable[Line]) -> Counted:
    """Count a training's mini-batches and samples."""
    counts = joined(lines)
    history = [line for line in counts if line.pid == _first(counts)]
    numbers = [line.step for line in history]
    lost = sum(then != before + 1 for before, then in pairwise(numbers)) + (numbers[:1] not in ([], [1]))
    over = range(history[-1].epoch if history else 0)
    used: dict[int, Counter[int]] = defaultdict(Counter)
    for line in counts:
        used[line.epoch].update(line.samples)
    return Counted(
        steps=len(set(numbers)),
        batches_lost=lost,
        samples_repeated=sum(_repeated(each, epoch in over) for epoch, each in used.items()),
        samples_missing=sum(TRAIN_SAMPLES - len(used[epoch]) for epoch in over),
        epochs=len(over),
    )


def _repeated(used: Counter[int], over: bool) -> int:
    """Uses beyond the first. At the end of an epoch, the sampler repeats one sample, because it deals an odd
    number of samples to two workers."""
    filled_up = TRAIN_SAMPLES % 2 if over or used.total() > TRAIN_SAMPLES else 0
    return max(0, used.total() - len(used) - filled_up)


def longest_pause_s(lines: Iterable[Line], at: float, within_s: float) -> float | None:
    """The longest time between two steps of rank 0 in `within_s` seconds after `at`, less the median before.

    None: nothing was measured.
    """
    counts = joined(lines)
    ends = [line.ended for line in counts if line.pid == _first(counts)]
    gaps = [(after, after - before) for before, after in pairwise(ends)]
    usual = [gap for after, gap in gaps if after <= at]
    later = [gap for after, gap in gaps if at < after <= at + within_s]
    return max(later) - median(usual) if usual and later else None
