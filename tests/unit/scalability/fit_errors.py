"""How far the model of step times is off for applications that were measured: what errors are calibrated by.

Run as a program it prints the table of docs/evidence/speeds.md.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flexo.scalability.allreduce import StepModel, fit
from flexo.scalability.step_times import Observation, Setting
from flexo_simulation.pollux_profiles import DECLARED, Application, load_application

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_HISTORIES = 40
"""Of each application, half of them growing step by step."""


@dataclass(frozen=True)
class Miss:
    """One prediction."""

    what: str
    off: float
    """Logarithm of what was predicted to what was measured."""
    stated: float
    """The relative standard error that the model states."""


def misses(profiles: Path) -> Iterator[Miss]:
    """Predictions for all applications that run on several GPUs, on nodes of four, from random histories."""
    for name in sorted(set(DECLARED) - {"ncf"}):
        application = load_application(profiles, name)
        draw = random.Random(name)
        for number in range(_HISTORIES):
            seen = _history(application, draw, grows=number % 2 == 0)
            if seen:
                yield from _predict(application, fit(seen), draw)


def _history(application: Application, draw: random.Random, grows: bool) -> list[Observation]:
    many = draw.randint(1, 6)
    sizes = [1, 2, 4, 8, 16, 32][:many] if grows else sorted(draw.sample(_SIZES, many))
    found = {}
    for workers in sizes:
        for _ in range(draw.randint(1, 3)):
            observation = _observed(application, workers, draw)
            if observation is not None:
                found[observation.setting] = observation
    return list(found.values())


def _observed(application: Application, workers: int, draw: random.Random) -> Observation | None:
    limits = application.limits
    local = draw.randint(limits.local.min, limits.local.max)
    placement = (4,) * (workers // 4) + ((workers % 4,) if workers % 4 else ())
    if local * workers > limits.largest:
        return None
    try:
        time = application.step_times.of(placement, local)
    except ValueError:
        return None
    return Observation(Setting(workers, len(placement), local), time)


def _predict(application: Application, model: StepModel, draw: random.Random) -> Iterator[Miss]:
    for workers in (*_SIZES, 20, 48, 64):
        for _ in range(3):
            true = _observed(application, workers, draw)
            if true is not None:
                several, local = true.setting.nodes > 1, float(true.setting.local)
                predicted = float(model.step_s(np.array(float(workers)), several, np.array(local)))
                off = math.log(predicted / true.time.step_s)
                yield Miss(_what(model, workers, several), off, model.error(workers, several))


def _what(model: StepModel, workers: int, several: bool) -> str:
    if workers == 1:
        return "one worker"
    where = "several nodes" if several else "one node"
    seen = [size for size in (model.seen_between if several else model.seen_within) if size > 1]
    if not seen:
        return f"{where}, never seen"
    doublings = round(min(abs(math.log2(workers / size)) for size in seen))
    return f"{where}, {doublings} doublings away"


def root_mean_square(values: list[float]) -> float:
    """Of at least one."""
    return math.sqrt(sum(value * value for value in values) / len(values))


def by_kind(profiles: Path) -> dict[str, list[Miss]]:
    """All misses, by what was predicted."""
    kinds = defaultdict(list)
    for miss in misses(profiles):
        kinds[miss.what].append(miss)
    return dict(sorted(kinds.items()))


if __name__ == "__main__":
    for what, found in by_kind(Path(sys.argv[1])).items():
        offs = [miss.off for miss in found]
        true, mean = root_mean_square(offs), sum(offs) / len(offs)
        stated = root_mean_square([miss.stated for miss in found])
        print(f"| {what} | {len(offs)} | {true:.2f} | {mean:+.2f} | {stated:.2f} |")
