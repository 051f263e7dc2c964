"""Part `steady`: samples/s at a fixed size, stock Horovod and flexo in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.runtime.results import Steady
from bench.runtime.rivals import Rival, Training, running, wait_until_settled
from bench.runtime.worklog import Batch, WorkLog, samples_per_second

WARM = 10
"""Mini-batches before the measuring begins."""

Tell = Callable[[str], None]


def measure(
    rivals: Sequence[Rival], workers: int, pairs: int, seconds: float, folder: Path, tell: Tell
) -> Iterator[Steady]:
    """Each rival once a pair, and first in every other pair. Raises RivalFailed."""
    for pair in range(pairs):
        for rival in rivals if pair % 2 == 0 else reversed(rivals):
            training = Training(folder / f"steady-{rival.name}-{pair}", largest=workers + 1)
            with running(rival, training, workers) as log:
                wait_until_settled(rival, log, workers, WARM)
                found = rate(log, seconds)
            tell(f"steady {rival.name:8} {workers} workers: {found:8.1f} samples/s")
            yield Steady(rival.name, pair, workers, found)


def rate(log: WorkLog, seconds: float) -> float:
    """Samples/s of all workers together over the next `seconds`."""
    since = time.time()
    time.sleep(seconds)
    return samples_per_second(_between(log.read().batches, since, since + seconds))


def _between(batches: Sequence[Batch], start: float, end: float) -> list[Batch]:
    return [batch for batch in batches if start <= batch.at < end]
