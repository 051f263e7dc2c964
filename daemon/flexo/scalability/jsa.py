"""IBM's job scalability analyzer: a job's speed from trials on one GPU and all-reduces of the cluster.

Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", section III-B. A step with a batch of b
on k GPUs takes

    t_iter(b, k) = t_proc(ceil(b / k)) + t_comm(p, k)

t_proc is tried out for every job when it arrives, on one GPU with several batches. t_comm for p weights is
measured once for the cluster. In the paper's equation (2), "b" is the batch of the whole job; only "b_max" is
of one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexo.model.ranges import Range

CALIBRATED_WEIGHTS = tuple(million * 1e6 for million in range(10, 101, 10))
"""Numbers of weights whose all-reduce the paper measures."""

_KEPT_GPUS = 1024
"""The most GPUs whose speed with a given batch is kept: a batch may have millions of samples."""
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProcessingTimes:
    """t_proc: seconds of one step on one GPU, without communication, by its samples."""

    samples: tuple[int, ...]
    """Samples that were tried, ascending; at least one."""
    seconds: tuple[float, ...]

    @classmethod
    def try_out(cls, step_s: Callable[[int], float], low: int, high: int, trials: int) -> ProcessingTimes:
        """Time a few steps of a job that has arrived, with `trials` batches spaced evenly from `low` to
        `high`."""
        samples = sorted({round(each) for each in np.linspace(low, high, trials)})
        return cls(tuple(samples), tuple(step_s(each) for each in samples))

    def at(self, samples: npt.ArrayLike) -> _Floats:
        """The seconds for an array of any shape: interpolated, or extended along the nearest two trials."""
        return _along(np.asarray(samples, dtype=float), self.samples, self.seconds)


@dataclass(frozen=True, slots=True)
class AllReduceTimes:
    """t_comm: seconds to reduce the gradients of `weights` weights over `gpus` GPUs of one cluster."""

    gpus: tuple[int, ...]
    """Numbers of GPUs that were measured, ascending, from 2."""
    weights: tuple[float, ...]
    """Numbers of weights that were measured, ascending."""
    seconds: tuple[tuple[float, ...], ...]
    """The measured seconds, indexed by `gpus`, then by `weights`."""

    @classmethod
    def calibrate(
        cls,
        all_reduce_s: Callable[[float, int], float],
        gpus: Sequence[int],
        weights: Sequence[float] = CALIBRATED_WEIGHTS,
    ) -> AllReduceTimes:
        """Measure all combinations. Repeat this when the cluster's hardware changes."""
        table = tuple(tuple(all_reduce_s(each, many) for each in weights) for many in gpus)
        return cls(tuple(gpus), tuple(weights), table)

    def of(self, weights: float) -> tuple[float, ...]:
        """The seconds for this number of weights, interpolated, one for each of `gpus`."""
        return tuple(float(_along(np.array(weights), self.weights, row)) for row in self.seconds)


class JobScalability:
    """One job's speed (implements Speed), in samples per second; each worker has one GPU.

    The nodes of the GPUs do not matter, as in the paper. Results are cached.
    """

    def __init__(
        self,
        processing: ProcessingTimes,
        all_reduce: AllReduceTimes,
        weights: float,
        batch: Range,
        largest_per_gpu: int,
    ) -> None:
        """`batch`: the batches of the whole job that it accepts. `largest_per_gpu`: samples that fit one GPU,
        b_max."""
        self._processing = processing
        self._exchange_s = (0.0, *all_reduce.of(weights))
        self._exchange_gpus = (1, *all_reduce.gpus)
        self._batch = batch
        self._largest = largest_per_gpu
        self._best: dict[int, tuple[int, float]] = {}
        """Per number of GPUs: the best batch, and the samples per second with it."""
        self._fixed: dict[int, list[float]] = {}
        """Per batch: the samples per second with 1 GPU, 2 GPUs and so on, up to one sample on each GPU and
        _KEPT_GPUS."""

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        """T(b, k): samples per second; 0 if the batch does not fit, or a GPU would have no sample.

        An explicit `batch` need not be one that the job accepts.
        """
        if not batch:
            return self._best_of(workers)[1]
        if not 0 < workers <= batch:
            return 0.0
        if workers > _KEPT_GPUS:
            return float(self._rates(np.array(workers), np.array(batch)))
        rates = self._fixed.get(batch)
        if rates is None:
            gpus = np.arange(1, min(batch, _KEPT_GPUS) + 1)
            rates = self._fixed[batch] = self._rates(gpus, np.array(batch)).tolist()
        return rates[workers - 1]

    def best_batch(self, workers: int, nodes: int) -> int:
        """b_opt(k), equation (2), for the whole job; 0 if no batch that the job accepts fits."""
        return self._best_of(workers)[0]

    def _best_of(self, workers: int) -> tuple[int, float]:
        if workers < 1:
            return 0, 0.0
        known = self._best.get(workers)
        if known is None:
            batches = self._candidates(workers)
            rates = self._rates(np.array(workers), batches)
            at = int(rates.argmax())
            known = (int(batches[at]), float(rates[at])) if rates[at] > 0 else (0, 0.0)
            self._best[workers] = known
        return known

    def _candidates(self, workers: int) -> _Ints:
        """Batches one of which is the best, ascending, at least one.

        Of the batches with the same samples per GPU, the largest is the best. Between two trials, and beyond
        the first and the last, the rate only grows or only falls with these samples. So the best is at a
        trial or at a limit. A job may accept a billion batches.
        """
        low, high = self._batch.min, self._batch.max
        ends = (-(-low // workers), high // workers, self._largest)
        full = (workers * each for each in (*ends, *self._processing.samples))
        return np.array(sorted({low, high, *(each for each in full if low <= each <= high)}))

    def _rates(self, workers: _Ints, batches: _Ints) -> _Floats:
        """The samples per second; arrays are broadcast."""
        per_gpu = -(-batches // workers)
        # more GPUs than were measured take as long as the most that were measured
        exchange_s = np.interp(workers, self._exchange_gpus, self._exchange_s)
        fits = (per_gpu <= self._largest) & (batches >= workers)
        return np.where(fits, batches / (self._processing.at(per_gpu) + exchange_s), 0.0)


def _along(at: _Floats, known: Sequence[float], values: Sequence[float]) -> _Floats:
    """Interpolate linearly between known points, and extend along the first or last two.

    A time below the first point is at least in proportion to it, because the constant part of a time is not
    negative. A time beyond the last point is at least that of the last. Measured times waver, and a straight
    line alone may fall to 0.
    """
    if len(known) == 1:
        return np.full_like(at, values[0])
    x, y = np.array(known, dtype=float), np.array(values)
    piece = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    slope = (y[piece + 1] - y[piece]) / (x[piece + 1] - x[piece])
    least = np.where(at < x[0], y[0] * at / x[0], np.where(at > x[-1], y[-1], 0.0))
    return np.asarray(np.maximum(y[piece] + slope * (at - x[piece]), least))
