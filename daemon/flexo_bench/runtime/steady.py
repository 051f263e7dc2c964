"""Part `steady`: samples/s at fixed sizes, stock Horovod and flexo in turns.

Flexo on Horovod's own core is measured only with the toy model and two workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flexo_bench.runtime.results import MODELS, OURS, STEADY_WORKERS, Steady
from flexo_bench.runtime.rivals import Rival, Training, running, wait_until_settled
from flexo_bench.runtime.worklog import Batch, WorkLog, samples_per_second

WARM = {"toy": 10, "large": 5}
"""Mini-batches of every worker before the measuring begins."""

Tell = Callable[[str], None]


def measure(
    rivals: Sequence[Rival], pairs: int, seconds: float, folder: Path, tell: Tell
) -> Iterator[Steady]:
    """Measure each rival once per pair and model. The rivals' order alternates. Raises RivalFailed."""
    for pair in range(pairs):
        for model in MODELS:
            for rival in rivals if pair % 2 == 0 else reversed(rivals):
                if rival.name != OURS or model == "toy":
                    training = Training(folder / f"steady-{rival.name}-{model}-{pair}", model)
                    yield from _sizes(rival, training, pair, seconds, tell)


def _sizes(rival: Rival, training: Training, pair: int, seconds: float, tell: Tell) -> Iterator[Steady]:
    """Measure one run that grows from one size to the next."""
    sizes = STEADY_WORKERS[:1] if rival.name == OURS else STEADY_WORKERS
    training = replace(training, largest=sizes[-1] + 1)
    with running(rival, training, sizes[0]) as log:
        asked_at = 0.0
        for workers in sizes:
            if workers != sizes[0]:
                asked_at = rival.resize(workers)
            wait_until_settled(rival, log, workers, WARM[training.model], asked_at)
            found = rate(log, seconds)
            tell(f"steady {rival.name:10} {training.model:5} {workers} workers: {found:8.1f} samples/s")
            yield Steady(rival.name, pair, workers, found, training.model)


def rate(log: WorkLog, seconds: float) -> float:
    """Samples/s of all workers together over the next `seconds`."""
    since = time.time()
    time.sleep(seconds)
    return samples_per_second(_between(log.read().batches, since, since + seconds))


def _between(batches: Sequence[Batch], start: float, end: float) -> list[Batch]:
    return [batch for batch in batches if start <= batch.at < end]
