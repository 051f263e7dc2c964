"""Expected and measured step times of a model, and what its trials cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """A measured step beside the analyzer's expectations."""

    measured: Measured
    before_s: float
    """Expected from the trials of a job minutes before."""
    beside_s: float
    """Expected from trials in turn with the measured steps. Its error is the analyzer's own, because the
    machine is as fast as in these trials."""

    @property
    def error_before(self) -> float:
        """Relative error of `before_s`; above 0: a step is faster than expected."""
        return self.before_s / self.measured.step_s - 1

    @property
    def error_beside(self) -> float:
        """Relative error of `beside_s`."""
        return self.beside_s / self.measured.step_s - 1


@dataclass(frozen=True, slots=True)
class Analyzed:
    """A model: its trials, and the forecasts made of them."""

    model: str
    weights: int
    times: tuple[BatchTime, ...]
    """The times of the job's trials."""
    beside: Mapping[int, tuple[BatchTime, ...]]
    """By the workers of the measured job: times of the same batches in turn with the measured steps."""
    trials_worker_s: float
    job_worker_s: float
    """Worker seconds of the whole job whose first steps the trials were."""
    forecasts: tuple[Forecast, ...]

    @property
    def trials_share(self) -> float:
        """The trials' part of the job's worker time."""
        return self.trials_worker_s / self.job_worker_s

    @property
    def drift(self) -> dict[int, float]:
        """By the workers of the measured job: how much longer the tried batches took beside it, as a part."""
        return {
            workers: fmean(now.step_s / then.step_s for now, then in zip(times, self.times, strict=True)) - 1
            for workers, times in self.beside.items()
        }


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
    times: tuple[BatchTime, ...],
    beside: Mapping[int, tuple[BatchTime, ...]],
    weights: int,
    table: AllReduceTable,
    measured: Iterable[Measured],
) -> tuple[Forecast, ...]:
    """The analyzer's expectations of each measured pair. `times`, `beside`: see Analyzed."""
    pairs = tuple(measured)
    largest = max(max(-(-each.batch // each.workers) for each in pairs), times[-1].samples)
    batches = Range(1, max(each.batch for each in pairs))

    def expected_s(of: tuple[BatchTime, ...], pair: Measured) -> float:
        return pair.batch / speed_of(of, weights, largest, batches, table).rate(pair.workers, 1, pair.batch)

    return tuple(
        Forecast(pair, expected_s(times, pair), expected_s(beside[pair.workers], pair)) for pair in pairs
    )


def lines(found: Sequence[Analyzed], table: AllReduceTable) -> list[str]:
    """The results for people."""
    told = ["all-reduces (ms), by workers and weights:"]
    told.append(f"{'':>10}" + "".join(f"{weights:>12,.0f}" for weights in table.weights))
    for workers, row in zip(table.workers, table.seconds, strict=True):
        told.append(f"{workers:>10}" + "".join(f"{seconds * 1e3:>12.2f}" for seconds in row))
    for model in found:
        told += ["", f"{model.model}, {model.weights:,} weights; trials on one worker (samples: ms):"]
        told.append("  " + ", ".join(f"{each.samples}: {each.step_s * 1e3:.2f}" for each in model.times))
        told.append(
            f"{'workers':>10}{'batch':>8}{'measured':>12}{'before':>12}{'error':>9}{'beside':>12}{'error':>9}"
            f"{'wavers':>9}"
        )
        for each in model.forecasts:
            pair = each.measured
            told.append(
                f"{pair.workers:>10}{pair.batch:>8}{pair.step_s * 1e3:>9.2f} ms"
                f"{each.before_s * 1e3:>9.2f} ms{each.error_before:>+9.1%}"
                f"{each.beside_s * 1e3:>9.2f} ms{each.error_beside:>+9.1%}{pair.wavers:>9.1%}"
            )
        told += _summary(model)
    return told


def _summary(model: Analyzed) -> list[str]:
    enough_s = model.trials_worker_s / TRIALS_GOAL
    drift = ", ".join(f"{part:+.1%} ({workers})" for workers, part in model.drift.items())
    before = _errors(each.error_before for each in model.forecasts)
    beside = _errors(each.error_beside for each in model.forecasts)
    return [
        f"  before, by the job's own trials: {before}",
        f"  beside, by trials in turn with these steps: {beside}",
        f"  the tried batches themselves took longer by then (beside workers): {drift}",
        "  the measured steps differ between halves of their turns by"
        f" {fmean(each.measured.wavers for each in model.forecasts):.1%} in the mean",
        f"  trials: {model.trials_worker_s:.2f} worker seconds, {model.trials_share:.1%} of a job of"
        f" {model.job_worker_s:.0f}; at most {TRIALS_GOAL:.0%} of jobs from {enough_s:.0f} worker seconds on",
    ]


def _errors(errors: Iterable[float]) -> str:
    sizes = [abs(each) for each in errors]
    within = sum(size <= GOAL for size in sizes)
    return (
        f"errors: mean {fmean(sizes):.1%}, median {median(sizes):.1%}, worst {max(sizes):.1%};"
        f" {within} of {len(sizes)} within {GOAL:.0%}"
    )
