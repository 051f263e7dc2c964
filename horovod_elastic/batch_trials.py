"""A job's trials of several batches in its own steps, for IBM's job scalability analyzer. Pure.

Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", section III-B: every job that arrives
is executed for a few iterations with several batches, spaced evenly. The paper does that on a GPU of its own.
Here these iterations are steps of the training itself, so that no sample is trained on for nothing.

A machine has slow spells of seconds, and steps in a row err together. So each batch has its turn in several
rounds, and the rounds lie ever further apart. The first two come soon, because a policy waits for them. The
others make the times better while the job trains as it would have anyway.

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
ROUNDS = 4
"""How often each batch has its turn."""
FIRST_ROUNDS = 2
"""The rounds after which there are times."""
FIRST_PAUSE_STEPS = 72
"""Steps with the job's own batch before the second round. Before each later round it is PAUSES_GROW times as
many."""
PAUSES_GROW = 6
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
    """Median of the turns; of each turn the median counts."""
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


def pause_before(number: int) -> int:
    """Steps with the job's own batch before a round, counted from 0."""
    return FIRST_PAUSE_STEPS * PAUSES_GROW ** (number - 1) if number else 0


class TurnTimes:
    """The times of one worker's turns."""

    def __init__(self) -> None:
        self._turns: dict[int, list[tuple[float, int]]] = {}
        """Per samples of a step: median and number of the steps of each turn."""

    def add(self, steps: Sequence[tuple[int, float]]) -> None:
        """Add a turn: samples and seconds of its steps (at least one).

        The steps that have the usual number of samples count: at the end of an epoch it is another.
        """
        usual, count = Counter(samples for samples, _ in steps).most_common(1)[0]
        usual_s = median(seconds for samples, seconds in steps if samples == usual)
        self._turns.setdefault(usual, []).append((usual_s, count))

    @property
    def times(self) -> tuple[BatchTime, ...]:
        """The times so far, by samples."""
        return tuple(
            BatchTime(samples, median(step_s for step_s, _ in turns), sum(count for _, count in turns))
            for samples, turns in sorted(self._turns.items())
        )


class BatchTrials:
    """The trials of one worker in one generation (see the module)."""

    def __init__(self, aggregates: Sequence[int], turns: TurnTimes, rounds: int = 0) -> None:
        """`aggregates`: the aggregate batches to try; at least one. `turns`: where times are added.

        `rounds`: the rounds that the job has made in earlier generations.
        """
        if not aggregates:
            raise ValueError("no batch to try: at least one is needed")
        self.rounds = rounds
        """The rounds that the job has made."""
        self.seconds = 0.0
        """Seconds that the trials have taken so far, without the pauses between rounds."""
        self._aggregates = tuple(aggregates)
        self._turns = turns
        self._pause = pause_before(rounds)
        self._turn = 0
        """The number of the present batch in this round."""
        self._cold = FIRST_COLD_STEPS if not rounds else COLD_STEPS
        self._steps: list[tuple[int, float]] = []
        """Samples and seconds of the steps of the present turn."""

    @property
    def over(self) -> bool:
        """Whether all rounds are made."""
        return self.rounds >= ROUNDS

    @property
    def aggregate(self) -> int:
        """The aggregate batch to train with now; 0: the job's own."""
        return 0 if self._pause or self.over else self._aggregates[self._turn]

    def step(self, own_s: float, wall_s: float, samples: int) -> bool:
        """Take a step of this worker. Returns whether `aggregate` is to be taken up anew.

        `own_s`: its seconds without waiting for others. `wall_s`: with it. `samples`: this worker's samples.
        """
        if self._pause:
            self._pause -= 1
            return not self._pause
        self.seconds += wall_s
        self._steps.append((samples, own_s))
        if len(self._steps) < self._cold + MEASURED_STEPS:
            return False
        self._turns.add(self._steps[self._cold :])
        self._steps, self._cold = [], COLD_STEPS
        self._turn = (self._turn + 1) % len(self._aggregates)
        if not self._turn:
            self.rounds += 1
            self._pause = 0 if self.over else pause_before(self.rounds)
        return True
