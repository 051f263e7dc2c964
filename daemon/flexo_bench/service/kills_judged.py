"""What deaths have cost a job, from what the workers of a script train_kills*.py have logged. Pure.

Whoever has rank 0 is not killed, so the newest line of each step by a rank 0 is the history. A mini-batch
that a worker begins a second time is lost. A sample is repeated if it counts more than once in an epoch of
the history, and missing if it does not count in an epoch that is over. DistributedSampler fills the last
mini-batch of an epoch up with samples that were used before, with or without deaths, so that all workers have
equally many. Those are counted apart.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

AROUND_S = 2.0
"""Seconds after a death in which the longest gap is its pause. A gap that begins in them counts whole."""
NEAR = 30
"""Steps before a death whose median is that of a step."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed. `at`: seconds since the epoch. `what`: its rank, or where it was."""

    at: float
    pid: int
    what: str


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one death.

    `pause_s`: the longest gap between two steps of a worker that lives, in AROUND_S, less the median step.
    `later_s`: the same, from then to the next death.
    """

    batches_lost: int
    pause_s: float
    later_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What a job has come to."""

    costs: tuple[Cost, ...]
    steps: int
    samples_repeated: int
    samples_filled_up: int
    samples_missing: int
    disagreements: int
    """Steps after which two workers had other parameters, or had used other samples."""


def judge(
    lines: Iterable[Mapping[str, Any]], kills: Sequence[Kill], samples: int, *, fills_up: bool = False
) -> Judged:
    """Judge a job. `samples`: of an epoch. `fills_up`: whether the script fills epochs up."""
    workers: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for line in sorted(lines, key=lambda each: float(each["time"])):
        workers[int(line["pid"])].append(line)
    history = _history(workers)
    counted: dict[int, Counter[int]] = defaultdict(Counter)
    for line in history.values():
        counted[line["epoch"]].update(line["used"])
    over = range(max(counted, default=0))
    repeated = sum(times - 1 for epoch in counted.values() for times in epoch.values())
    filled = sum(_filled_up(history, epoch, counted[epoch]) for epoch in counted) if fills_up else 0
    ends = [*(kill.at for kill in kills[1:]), float("inf")]
    costs = [_cost(workers, kill, end) for kill, end in zip(kills, ends, strict=False)]
    return Judged(
        costs=tuple(costs),
        steps=len(history),
        samples_repeated=repeated - filled,
        samples_filled_up=filled,
        samples_missing=sum(samples - len(counted[epoch]) for epoch in over),
        disagreements=_disagreements(workers, history),
    )


def irregular(lines: Iterable[Mapping[str, Any]]) -> str:
    """What makes a job's logs no base for a judgement; "" if nothing does."""
    steps = {line["step"] for line in lines if line["event"] == "step" and line["rank"] == 0}
    missing = set(range(1, max(steps, default=0))) - steps
    return f"no rank 0 has logged the steps {sorted(missing)}" if missing else ""


def digests(lines: Iterable[Mapping[str, Any]]) -> dict[int, set[str]]:
    """The digests that workers had after each step."""
    found: dict[int, set[str]] = defaultdict(set)
    for line in lines:
        if line["event"] == "step":
            found[line["step"]].add(line["digest"])
    return found


def _history(workers: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[int, Mapping[str, Any]]:
    steps = [line for lines in workers.values() for line in lines if line["event"] == "step"]
    steps.sort(key=lambda line: float(line["time"]))
    return {line["step"]: line for line in steps if line["rank"] == 0}


def _filled_up(history: Mapping[int, Mapping[str, Any]], epoch: int, counted: Counter[int]) -> int:
    """How many samples of an epoch's last step were used before only because the rest is no multiple of the
    workers."""
    last = history[max(step for step, line in history.items() if line["epoch"] == epoch)]
    used = Counter(last["used"])
    new = sum(counted[sample] == times for sample, times in used.items())
    again = sum(times - 1 if counted[sample] == times else times for sample, times in used.items())
    return min(again, -new % int(last["size"]))


def _cost(workers: Mapping[int, Sequence[Mapping[str, Any]]], kill: Kill, end: float) -> Cost:
    pauses, later, steps, lost = [0.0], [0.0], [0.0], [0]
    for pid, lines in workers.items():
        if pid == kill.pid:
            continue
        times = [line["time"] for line in lines if line["event"] == "step"]
        gaps = list(pairwise(times))
        before = [b - a for a, b in gaps if b <= kill.at][-NEAR:]
        if not before:
            continue  # it has come later
        usual = statistics.median(before)
        steps.append(usual)
        after = [(a, b) for a, b in gaps if b > kill.at and a < end]
        pauses += [b - a - usual for a, b in after if a < kill.at + AROUND_S]
        later += [b - a - usual for a, b in after if a >= kill.at + AROUND_S]
        lost.append(_begun_again(lines, kill.at, end))
    return Cost(max(lost), max(pauses), max(later), max(steps))


def _begun_again(lines: Sequence[Mapping[str, Any]], since: float, until: float) -> int:
    """How many mini-batches this worker began again in this time."""
    begun: set[int] = set()
    again = 0
    for line in lines:
        if line["event"] == "begin":
            again += line["step"] in begun and since < line["time"] <= until
            begun.add(line["step"])
    return again


def _disagreements(
    workers: Mapping[int, Sequence[Mapping[str, Any]]], history: Mapping[int, Mapping[str, Any]]
) -> int:
    """A line counts if it is its worker's newest of that step, and the step was not done anew without it."""
    wrong = set()
    for lines in workers.values():
        newest = {line["step"]: line for line in lines if line["event"] == "step"}
        for step, line in newest.items():
            kept = history.get(step)
            if kept is None or kept["size"] != line["size"]:
                continue
            if (kept["digest"], kept["used"]) != (line["digest"], line["used"]):
                wrong.add(step)
    return len(wrong)
