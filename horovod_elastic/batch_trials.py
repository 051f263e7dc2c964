"""A job's trials of several batches in its own steps, for IBM's job scalability analyzer. Pure.

Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", section III-B: every job that arrives
is executed for a few iterations with several batches, spaced evenly. The paper does that on a GPU of its own.
Here these iterations are steps of the training itself, so that no sample is trained on for nothing.

All workers take the same number of steps with each batch, whatever they measure. So their batches never
differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

BATCHES = 4
"""Number of batches that are tried."""
FIRST_COLD_STEPS = 6
"""Steps with the first batch that do not count: libraries, allocators and caches are cold."""
COLD_STEPS = 3
"""The same with each further batch. A data pipeline takes up to two steps until its mini-batches have the new
size."""
MEASURED_STEPS = 8
"""Steps with each batch that count."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a step of one worker, without waiting for others."""

    samples: int
    """Samples of this worker in a step."""
    step_s: float
    """Median."""
    steps: int
    """Number of steps over which it was taken."""


def batches_to_try(low: int, high: int, workers: int, largest: int) -> tuple[int, ...]:
    """The aggregate batches to try, in samples, ascending; spaced evenly within `low` to `high`.

    `largest`: samples that fit one pass of a worker. A step of several passes tells nothing of one pass, so
    no batch is tried that needs several. 0: not known, and then only `low` is sure to fit. (): none fits.
    """
    most = min(high, workers * largest) if largest else low
    if most < low:
        return ()
    step = (most - low) / (BATCHES - 1)
    return tuple(sorted({round(low + number * step) for number in range(BATCHES)}))


class BatchTrials:
    """The trials of one worker (see the module)."""

    def __init__(self, aggregates: Sequence[int]) -> None:
        """`aggregates`: the aggregate batches to try; at least one."""
        if not aggregates:
            raise ValueError("no batch to try: at least one is needed")
        self._left = list(aggregates)
        self._cold = FIRST_COLD_STEPS
        self._steps = 0
        self._seen: list[tuple[int, float]] = []
        """Samples and seconds of the steps with the present batch that count."""
        self._times: dict[int, BatchTime] = {}
        self.seconds = 0.0
        """Seconds that the trials have taken so far."""

    @property
    def aggregate(self) -> int:
        """The aggregate batch to train with now; 0: the trials are over."""
        return self._left[0] if self._left else 0

    @property
    def times(self) -> tuple[BatchTime, ...]:
        """The times so far, by samples."""
        return tuple(self._times[samples] for samples in sorted(self._times))

    def step(self, own_s: float, wall_s: float, samples: int) -> bool:
        """Take a step of this worker. Returns whether `aggregate` has changed.

        `own_s`: its seconds without waiting for others. `wall_s`: with it. `samples`: this worker's samples.
        """
        self.seconds += wall_s
        self._steps += 1
        if self._steps > self._cold:
            self._seen.append((samples, own_s))
        if self._steps < self._cold + MEASURED_STEPS:
            return False
        self._conclude()
        return True

    def _conclude(self) -> None:
        """Go on to the next batch. Steps at the end of an epoch have other numbers of samples."""
        usual, count = Counter(samples for samples, _ in self._seen).most_common(1)[0]
        step_s = median(seconds for samples, seconds in self._seen if samples == usual)
        self._times[usual] = BatchTime(usual, step_s, count)
        self._left.pop(0)
        self._seen, self._steps, self._cold = [], 0, COLD_STEPS
