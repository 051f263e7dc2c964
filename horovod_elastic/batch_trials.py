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
ROUNDS = 3
"""How often each batch has its turn. A machine is faster and slower from second to second, so that steps in a
row err together. Turns that lie apart do not."""
FIRST_COLD_STEPS = 6
"""Steps with the first batch that do not count: libraries, allocators and caches are cold."""
COLD_STEPS = 3
"""The same after each further change of the batch. A data pipeline takes up to two steps until its
mini-batches have the new size."""
MEASURED_STEPS = 6
"""Steps of each turn that count."""


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
        self._left = list(aggregates) * ROUNDS
        self._cold = FIRST_COLD_STEPS
        self._steps = 0
        """Steps of the present turn."""
        self._seen: dict[int, list[tuple[int, float]]] = {each: [] for each in aggregates}
        """Per aggregate batch: samples and seconds of the steps that count."""
        self.seconds = 0.0
        """Seconds that the trials have taken so far."""

    @property
    def aggregate(self) -> int:
        """The aggregate batch to train with now; 0: the trials are over."""
        return self._left[0] if self._left else 0

    @property
    def times(self) -> tuple[BatchTime, ...]:
        """The times so far, by samples."""
        found = [_usual(steps) for steps in self._seen.values() if steps]
        return tuple(sorted(found, key=lambda each: each.samples))

    def step(self, own_s: float, wall_s: float, samples: int) -> bool:
        """Take a step of this worker. Returns whether a turn has ended, and `aggregate` is to be taken up.

        `own_s`: its seconds without waiting for others. `wall_s`: with it. `samples`: this worker's samples.
        """
        self.seconds += wall_s
        self._steps += 1
        if self._steps > self._cold:
            self._seen[self.aggregate].append((samples, own_s))
        if self._steps < self._cold + MEASURED_STEPS:
            return False
        self._left.pop(0)
        self._steps, self._cold = 0, COLD_STEPS
        return True


def _usual(steps: Sequence[tuple[int, float]]) -> BatchTime:
    """The median of the steps that have the usual number of samples: at the end of an epoch it is another."""
    usual, count = Counter(samples for samples, _ in steps).most_common(1)[0]
    return BatchTime(usual, median(seconds for samples, seconds in steps if samples == usual), count)
