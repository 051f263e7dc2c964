"""The measurements of the benchmark, and the ratios by which they are judged. All functions are pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flexo_bench.runtime.pauses import Pause

STOCK, RESTART, OURS, CORE_TORCH = "stock", "restart", "flexo", "core_torch"
"""OURS is flexo on Horovod's own core, CORE_TORCH flexo on the core on torch.distributed."""
FLEXOS = (OURS, CORE_TORCH)
MODELS = ("toy", "large")
STEADY_WORKERS = (2, 4)
"""Sizes at which throughput is measured."""


@dataclass(frozen=True, slots=True)
class Resize:
    """One resize of one rival."""

    rival: str
    model: str
    cost: Pause
    grant_to_useful_s: float | None = None
    """Time from the leader's grant to the newcomers' first mini-batch; only for growth of FLEXOS."""
    warming_slows: float | None = None
    """Result of pauses.warming_slows; only for growth of FLEXOS."""


@dataclass(frozen=True, slots=True)
class Steady:
    """One run at a fixed size."""

    rival: str
    pair: int
    workers: int
    samples_per_second: float
    model: str = "toy"


@dataclass(frozen=True, slots=True)
class Interval:
    """A time, from `start` to `end` in seconds since the run's beginning, with GPUs for `workers` workers."""

    start: float
    end: float
    workers: int


@dataclass(frozen=True, slots=True)
class Transient:
    """One cycle of training with GPUs that come, stay and go (transient.py).

    `intervals`: the workers that had GPUs. They begin and end with the job's own workers alone.
    """

    rival: str
    gpus: int
    """Number of GPUs that come and go."""
    interval_s: float
    """Time for which the GPUs were to stay."""
    step_seconds: float
    intervals: tuple[Interval, ...]
    samples: int
    """Number of samples that were really trained."""
    fixed: dict[int, float]
    """Samples/s at each size, measured with that size fixed."""

    @property
    def ideal_samples(self) -> float:
        """Samples if resizing cost nothing and happened at once."""
        return sum((part.end - part.start) * self.fixed[part.workers] for part in self.intervals)

    @property
    def without_borrowing(self) -> float:
        """Samples if the job had never used the GPUs that come and go."""
        least = min(self.fixed)
        return sum((part.end - part.start) * self.fixed[least] for part in self.intervals)

    @property
    def gained(self) -> float:
        """The part of what the GPUs could give that they gave; below 0 if they cost more."""
        return (self.samples - self.without_borrowing) / (self.ideal_samples - self.without_borrowing)

    @property
    def over_baseline(self) -> float:
        """Throughput over that without borrowing, if the GPUs are away for as long as they stay.

        Nothing is resized while they are away, so the job then trains as without borrowing.
        """
        return 1 + (self.samples - self.without_borrowing) / self._baseline

    @property
    def ideal_over_baseline(self) -> float:
        """The same if resizing cost nothing and happened at once."""
        return 1 + (self.ideal_samples - self.without_borrowing) / self._baseline

    @property
    def ratio(self) -> float:
        """Throughput as a part of the ideal, if the GPUs are away for as long as they stay."""
        return self.over_baseline / self.ideal_over_baseline

    @property
    def _baseline(self) -> float:
        """Samples without borrowing in twice the time for which the GPUs stayed."""
        least = min(self.fixed)
        stayed = sum(part.end - part.start for part in self.intervals if part.workers > least)
        return 2 * stayed * self.fixed[least]


@dataclass(frozen=True, slots=True)
class Connected:
    """Times of the core on torch.distributed at one number of ranks: seconds of each repetition or step."""

    ranks: int
    idle: tuple[float, ...]
    """Time from the command until the last rank has built the next communicator. No rank trains."""
    training: tuple[float, ...]
    """The same time while all ranks train."""
    switched: tuple[float, ...]
    """The slowest rank's time for the switch itself."""
    first_collective: tuple[float, ...]
    """Time from the begin of the switch until the slowest rank has passed a barrier in the new one."""
    steps: tuple[float, ...]
    """Durations of rank 0's steps before a preparation."""
    meanwhile: tuple[float, ...]
    """Durations of rank 0's steps during a preparation."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A broadcast of a model's parameters in one piece. `seconds`: the slowest rank's, per repetition."""

    model: str
    ranks: int
    bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Connecting:
    """The measurements of connecting.py."""

    step_s: float
    """Duration of a step's sleep."""
    connected: tuple[Connected, ...]
    broadcasts: tuple[Broadcast, ...]

    def broadcast_s(self, model: str) -> float | None:
        """Median time of a broadcast of the model."""
        return median(value for each in self.broadcasts if each.model == model for value in each.seconds)

    def extrapolated_s(self, ranks: int) -> float | None:
        """Time to connect `ranks` ranks while all train, extrapolated from the last two measured numbers."""
        if len(self.connected) < 2:
            return None
        first, second = self.connected[-2:]
        before, after = statistics.median(first.training), statistics.median(second.training)
        power = math.log(after / before) / math.log(second.ranks / first.ranks)
        return float(after * (ranks / second.ranks) ** power)


@dataclass(frozen=True, slots=True)
class Beside:
    """The measurements of a separate benchmark: its samples, and its table."""

    samples: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """All results of one run of the benchmark; parts that were left out are empty."""

    machine: dict[str, Any]
    command: str
    resizes: Sequence[Resize] = ()
    steady: Sequence[Steady] = ()
    transient: Sequence[Transient] = ()
    connecting: Connecting | None = None
    rendezvous: Beside | None = None
    leader_lookup: Beside | None = None
    seconds: float = 0.0

    def pauses(self, rival: str, model: str, *, out: bool) -> list[float]:
        """Pauses in seconds: of growth if `out`, else of shrinking."""
        found = [each for each in self.resizes if (each.rival, each.model) == (rival, model)]
        return [each.cost.pause_s for each in found if each.cost.out is out]

    def rate(self, rival: str, model: str = "toy", workers: int = 2) -> float | None:
        """Median samples/s at a fixed size."""
        runs = (run for run in self.steady if (run.rival, run.model, run.workers) == (rival, model, workers))
        return median(run.samples_per_second for run in runs)

    def goals(self) -> list[Goal]:
        """Goals of flexo on Horovod's core with the toy model, then of flexo on torch.distributed's core."""
        return [*self._goals_of_ours(), *self._goals_of_core_torch()]

    def _goals_of_ours(self) -> list[Goal]:
        ours_out = median(self.pauses(OURS, "toy", out=True))
        ours_in = median(self.pauses(OURS, "toy", out=False))
        ours_transient = median(run.ratio for run in self.transient if run.rival == OURS)
        stock_in = median(self.pauses(STOCK, "toy", out=False))
        stock_out, restart_out = (median(self.pauses(who, "toy", out=True)) for who in (STOCK, RESTART))
        steady = _ratio(self.rate(OURS), self.rate(STOCK))
        return [
            Goal("out_pause_ratio_vs_stock", _ratio(ours_out, stock_out), at_most=1 / 20),
            Goal("out_pause_ratio_vs_restart", _ratio(ours_out, restart_out), at_most=1 / 20),
            Goal("in_pause_ratio_vs_stock", _ratio(ours_in, stock_in), at_most=1.0),
            Goal("steady_throughput_ratio_vs_stock", steady, at_least=0.99),
            Goal("transient_ratio_vs_ideal", ours_transient, at_least=0.97),
        ]

    def _goals_of_core_torch(self) -> Iterator[Goal]:
        for model in MODELS:
            own = f"{CORE_TORCH}.{model}"
            out, stock_out = (median(self.pauses(who, model, out=True)) for who in (CORE_TORCH, STOCK))
            in_, stock_in = (median(self.pauses(who, model, out=False)) for who in (CORE_TORCH, STOCK))
            allowed = self._mini_batch_and_two_broadcasts(model)
            yield Goal(f"{own}.out_pause_vs_mini_batch_and_two_broadcasts", _ratio(out, allowed), at_most=1.0)
            yield Goal(f"{own}.out_pause_ratio_vs_stock", _ratio(out, stock_out), at_most=1 / 100)
            batch = self.mini_batch(model, out=False)
            yield Goal(f"{own}.in_pause_vs_mini_batch", _ratio(in_, batch), at_most=1.0)
            yield Goal(f"{own}.in_pause_ratio_vs_stock", _ratio(in_, stock_in), at_most=1.0)
        for model, workers in itertools.product(MODELS, STEADY_WORKERS):
            ratio = _ratio(self.rate(CORE_TORCH, model, workers), self.rate(STOCK, model, workers))
            name = f"{CORE_TORCH}.{model}.steady_throughput_ratio_vs_stock_at_{workers}"
            yield Goal(name, ratio, at_least=1.0)
        transient = median(run.ratio for run in self.transient if run.rival == CORE_TORCH)
        yield Goal(f"{CORE_TORCH}.transient_ratio_vs_ideal", transient, at_least=0.97)

    def mini_batch(self, model: str, *, out: bool) -> float | None:
        """Median seconds of a mini-batch after a change, on the core on torch.distributed."""
        costs = (each.cost for each in self.resizes if (each.rival, each.model) == (CORE_TORCH, model))
        return median(cost.batch_after_s for cost in costs if cost.out is out)

    def _mini_batch_and_two_broadcasts(self, model: str) -> float | None:
        batch = self.mini_batch(model, out=True)
        broadcast = self.connecting.broadcast_s(model) if self.connecting else None
        return None if batch is None or broadcast is None else batch + 2 * broadcast

    def figures_of_core_torch(self) -> dict[str, float | None]:
        """The parts of core_torch's ratios, and its times to connect, in seconds."""
        found: dict[str, float | None] = {}
        for model in MODELS:
            own = f"{CORE_TORCH}.{model}"
            for out in (True, False):
                way = "out" if out else "in"
                found[f"{own}.{way}_pause_s"] = median(self.pauses(CORE_TORCH, model, out=out))
                found[f"{own}.{way}_mini_batch_s"] = self.mini_batch(model, out=out)
            found[f"{own}.broadcast_s"] = self.connecting.broadcast_s(model) if self.connecting else None
        for each in self.connecting.connected if self.connecting else ():
            own = f"{CORE_TORCH}.connect_at_{each.ranks}"
            found[f"{own}.nobody_trains_s"] = median(each.idle)
            found[f"{own}.all_train_s"] = median(each.training)
            found[f"{own}.step_s"] = median(each.steps)
            found[f"{own}.step_meanwhile_s"] = median(each.meanwhile)
        if self.connecting:
            found[f"{CORE_TORCH}.connect_at_64.extrapolated_s"] = self.connecting.extrapolated_s(64)
        return found


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio and its bound. `value` None: not measured in this run."""

    name: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"at most {self.at_most:g}" if self.at_most is not None else f"at least {self.at_least:g}"

    @property
    def verdict(self) -> str:
        """One of reached, missed and not measured."""
        if self.value is None:
            return "not measured"
        low, high = self.at_least, self.at_most
        reached = (high is None or self.value <= high) and (low is None or self.value >= low)
        return "reached" if reached else "missed"


def median(values: Iterable[float]) -> float | None:
    """The median of `values`; None if there are none."""
    found = list(values)
    return statistics.median(found) if found else None


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    """The ratio of ours to theirs. Pauses below the resolution of the logs count as 0.1 ms."""
    return None if ours is None or theirs is None else max(ours, 1e-4) / max(theirs, 1e-4)
