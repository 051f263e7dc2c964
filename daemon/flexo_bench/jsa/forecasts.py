"""Expected and measured step times of a model, and what its trials cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from flexo.control.batch_trials import speed_of
from flexo.model.measured import BatchTime
from flexo.model.ranges import Range
from flexo_protos.all_reduce_file import AllReduceTable

MODELS = ("cnn", "mlp")
"""The models of train.py: convolutions, and a perceptron with far more weights."""
GOAL = 0.10
"""The largest relative error that the project aims at."""
TRIALS_GOAL = 0.02
"""The largest part of a job's worker time that its trials are to take."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured time of a step of a pair that the analyzer has not seen."""

    workers: int
    batch: int
    step_s: float
    """Median."""
    wavers: float
    """How far apart the medians of every other turn and of the rest are, relative to the median of all."""

    @classmethod
    def of(cls, workers: int, batch: int, turns: Sequence[Sequence[float]]) -> Measured:
        """What the steps (seconds) of several turns of this pair show."""
        every = median(step for turn in turns for step in turn)
        first, second = (median(step for turn in turns[half::2] for step in turn) for half in (0, 1))
        return cls(workers, batch, every, abs(first - second) / every)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A measured step beside the analyzer's expectation."""

    measured: Measured
    expected_s: float

    @property
    def error(self) -> float:
        """Relative error of the expectation; above 0: a step is faster than expected."""
        return self.expected_s / self.measured.step_s - 1


@dataclass(frozen=True, slots=True)
class Analyzed:
    """A model: its trials, and the forecasts made of them."""

    model: str
    weights: int
    times: tuple[BatchTime, ...]
    trials_worker_s: float
    job_worker_s: float
    """Worker seconds of the whole job whose first steps the trials were."""
    forecasts: tuple[Forecast, ...]

    @property
    def trials_share(self) -> float:
        """The trials' part of the job's worker time."""
        return self.trials_worker_s / self.job_worker_s


def unseen(times: Sequence[BatchTime], most_workers: int) -> dict[int, tuple[int, ...]]:
    """Batches to measure by the number of workers: on one worker those halfway between trials; on more, any.

    Per worker, these are the sizes that were tried, those halfway between, and one below the smallest.
    """
    tried = [each.samples for each in times]
    between = [(low + high) // 2 for low, high in pairwise(tried)]
    locals_of_more = sorted({max(1, tried[0] * 2 // 3), *tried, *between})
    more = {
        workers: tuple(workers * each for each in locals_of_more) for workers in range(2, most_workers + 1)
    }
    return {1: tuple(between), **more}


def forecasts(
    times: tuple[BatchTime, ...], weights: int, table: AllReduceTable, measured: Iterable[Measured]
) -> tuple[Forecast, ...]:
    """The analyzer's expectation of each measured pair."""
    pairs = tuple(measured)
    largest = max(max(-(-each.batch // each.workers) for each in pairs), times[-1].samples)
    batches = Range(1, max(each.batch for each in pairs))
    speed = speed_of(times, weights, largest, batches, table)
    return tuple(Forecast(each, each.batch / speed.rate(each.workers, 1, each.batch)) for each in pairs)


def lines(found: Sequence[Analyzed], table: AllReduceTable) -> list[str]:
    """The results for people."""
    told = ["all-reduces (ms), by workers and weights:"]
    told.append(f"{'':>10}" + "".join(f"{weights:>12,.0f}" for weights in table.weights))
    for workers, row in zip(table.workers, table.seconds, strict=True):
        told.append(f"{workers:>10}" + "".join(f"{seconds * 1e3:>12.2f}" for seconds in row))
    for model in found:
        told += ["", f"{model.model}, {model.weights:,} weights; trials on one worker (samples: ms):"]
        told.append("  " + ", ".join(f"{each.samples}: {each.step_s * 1e3:.2f}" for each in model.times))
        told.append(f"{'workers':>10}{'batch':>8}{'expected':>11}{'measured':>11}{'error':>9}{'wavers':>9}")
        for each in model.forecasts:
            pair = each.measured
            told.append(
                f"{pair.workers:>10}{pair.batch:>8}{each.expected_s * 1e3:>8.2f} ms"
                f"{pair.step_s * 1e3:>8.2f} ms{each.error:>+9.1%}{pair.wavers:>9.1%}"
            )
        told += _summary(model)
    return told


def _summary(model: Analyzed) -> list[str]:
    errors = [abs(each.error) for each in model.forecasts]
    within = sum(error <= GOAL for error in errors)
    enough_s = model.trials_worker_s / TRIALS_GOAL
    return [
        f"  errors: mean {fmean(errors):.1%}, median {median(errors):.1%}, worst {max(errors):.1%};"
        f" {within} of {len(errors)} within {GOAL:.0%}",
        "  the measured steps themselves differ between halves of their turns by"
        f" {fmean(each.measured.wavers for each in model.forecasts):.1%} in the mean",
        f"  trials: {model.trials_worker_s:.2f} worker seconds, {model.trials_share:.1%} of a job of"
        f" {model.job_worker_s:.0f}; at most {TRIALS_GOAL:.0%} of jobs from {enough_s:.0f} worker seconds on",
    ]
