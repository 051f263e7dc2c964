"""A profile: train with each size of a range for a while, and measure the throughput (Amoeba, Table 1).

Pure: times of mini-batches go in, the size to train with comes out. Workers beyond that size step aside and
stay warm. So a profile costs one switch for each size, and no start of a worker.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

BATCHES = 20
"""Default number of mini-batches that are measured at each size."""
MOST_BATCHES = 10_000
WARM_UP_BATCHES = 5
"""Number of mini-batches after a switch that do not count: allocators, caches and the communicator's buffers
are cold.
"""
MOST_SIZES = 12
"""Largest number of sizes that are measured. A wider range is thinned out."""
SIZE_WITHIN_S = 120.0
"""Longest time until the job has a size; then the size is left out."""
STEP_WITHIN_S = 600.0
"""Longest time without a report of any worker; then the size is left out."""
_SPARE = 1000
"""Number of further mini-batches kept for each worker: not every worker reports every mini-batch."""
OPT_OUT_VARIABLE = "FLEXO_PROFILE"
OPTED_OUT = "its user has turned profiling off (flexo run --no-profile), which makes the job inelastic"


def allowed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the job may be profiled, and so resized at all.

    "If a user does not want the scheduler to adjust the parallelism of his job, he can explicitly declare
    its job as inelastic by disabling profiling" (Amoeba, section 4). `flexo run --no-profile` sets the
    variable for all agents.
    """
    return environment.get(OPT_OUT_VARIABLE, "") != "off"


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """The job's speed with `workers` workers. Times are seconds, medians over `batches` mini-batches."""

    workers: int
    samples_per_s: float
    """Samples a second of all workers, t(p); 0 if the script does not tell the samples of a mini-batch."""
    step_s: float
    """Time from one mini-batch boundary to the next, for the slowest worker."""
    sync_s: float
    """Time of a step that a worker waits in collectives."""
    batches: int
    efficiency: float = 0.0
    """See `with_efficiency`."""

    @property
    def steps_of_all_per_s(self) -> float:
        """Mini-batches a second of all workers: the throughput, if samples a mini-batch do not vary."""
        return self.workers / self.step_s


def with_efficiency(points: Collection[ProfilePoint]) -> tuple[ProfilePoint, ...]:
    """The points by workers, each with its efficiency p* t(p) / (p t(p*)) (Amoeba, section 3.1).

    p* is the measured size with the largest throughput for each worker. It is usually the smallest size, but
    not where a large batch does not fit few GPUs. If samples are not known, a worker's mini-batch is assumed
    to be the same at all sizes.
    """
    in_samples = all(point.samples_per_s for point in points)
    speeds = {
        point.workers: (point.samples_per_s if in_samples else point.steps_of_all_per_s) / point.workers
        for point in points
    }
    best = max(speeds.values(), default=0.0)
    return tuple(
        replace(point, efficiency=speeds[point.workers] / best)
        for point in sorted(points, key=lambda point: point.workers)
    )


def sizes_between(low: int, high: int) -> tuple[int, ...]:
    """The sizes to measure, largest first; for a wide range both ends and some between, in even ratios."""
    if high - low < MOST_SIZES:
        return tuple(range(high, low - 1, -1))
    ratio = (high / low) ** (1 / (MOST_SIZES - 1))
    return tuple(sorted({round(low * ratio**step) for step in range(MOST_SIZES)}, reverse=True))


@dataclass(frozen=True, slots=True)
class _Step:
    own_s: float
    wall_s: float
    samples: int


class Profile:
    """One profile under way. Sizes are taken from the largest down: a running job has its workers already."""

    def __init__(self, low: int, high: int, there: int, now: float, batches: int = 0, unit: int = 1) -> None:
        """Profile the sizes `low` to `high`, but no more than the job's workers.

        `there`: number of workers that the job has. `batches`: mini-batches to measure; 0: BATCHES. Times are
        monotonic. `unit`: sizes are multiples of it. Raises ValueError for a range that cannot be measured.
        """
        if not 1 <= low <= high:
            raise ValueError(f"{low}-{high} workers: 1 <= MIN <= MAX is allowed")
        if low > there:
            raise ValueError(f"{low}-{high} workers: the job has only {there}")
        if batches > MOST_BATCHES:
            raise ValueError(f"{batches} mini-batches at each size: at most {MOST_BATCHES} are allowed")
        self.left_out = [f"more than {there} workers, because the job has {there}"] if high > there else []
        """The sizes that were left out, each with the reason."""
        whole = {size - size % unit for size in sizes_between(low, min(high, there))} - {0}
        if not whole:
            raise ValueError(f"{low}-{high} workers: the job has units of {unit}")
        self._todo = sorted(whole, reverse=True)
        self._batches = batches or BATCHES
        self._points: list[ProfilePoint] = []
        self._generation = 0
        self._workers: frozenset[str] = frozenset()
        self._steps: dict[str, dict[int, _Step]] = {}
        self._from: int | None = None
        """The mini-batch after which counting begins, warm-up included; None: the next that is reported."""
        self._patient_since = now

    @property
    def limit(self) -> int | None:
        """Number of workers that are to train now; None when the profile is over."""
        return self._todo[0] if self._todo else None

    @property
    def points(self) -> tuple[ProfilePoint, ...]:
        """The measurements so far, by number of workers."""
        return with_efficiency(self._points)

    def trains(self, generation: int, workers: Collection[str], now: float, *, already: bool = False) -> None:
        """`workers` train in `generation` from now on. `already`: they have trained in it before."""
        self._generation, self._workers = generation, frozenset(workers)
        self._steps, self._patient_since = {}, now
        self._from = None if already else 0

    def steps(
        self,
        worker_id: str,
        generation: int,
        boundary: int,
        own_s: Sequence[float],
        wall_s: Sequence[float],
        samples: int,
        now: float,
    ) -> ProfilePoint | None:
        """Take the times of a worker's mini-batches, of which the last ends at `boundary`.

        `own_s`: seconds without waiting in collectives. `wall_s`: seconds with it. `samples`: number of
        samples in each mini-batch, 0 if unknown. Returns the point that is complete now, or None. Its
        efficiency is known only at the end.
        """
        if generation != self._generation or worker_id not in self._workers or not own_s:
            return None
        self._patient_since = now
        if len(self._workers) != self.limit:
            return None
        if self._from is None:
            self._from = boundary
        first = boundary - len(own_s) + 1 - self._from
        mine = self._steps.setdefault(worker_id, {})
        for index, (own, wall) in enumerate(zip(own_s, wall_s, strict=True), start=first):
            if index > WARM_UP_BATCHES and len(mine) < self._batches + _SPARE:
                mine[index] = _Step(own, wall, samples)
        return self._measured()

    def tick(self, now: float) -> str:
        """Leave out a size that takes too long; return the size and the reason, or "" if none is left out."""
        if self.limit is None:
            return ""
        right_size = len(self._workers) == self.limit
        if now - self._patient_since <= (STEP_WITHIN_S if right_size else SIZE_WITHIN_S):
            return ""
        size = self._todo.pop(0)
        waited_s = now - self._patient_since
        self._patient_since = now
        why = "no mini-batch ended" if right_size else f"the job had {len(self._workers)}"
        self.left_out.append(f"{size} workers: {why} within {waited_s:.0f} s")
        return self.left_out[-1]

    def _measured(self) -> ProfilePoint | None:
        if len(self._steps) < len(self._workers):
            return None
        everybody = list(self._steps.values())
        told_by_all = set(everybody[0]).intersection(*everybody[1:])
        if len(told_by_all) < self._batches:
            return None
        indexes = sorted(told_by_all)[: self._batches]
        steps = [[mine[index] for index in indexes] for mine in everybody]
        step_s = median(max(step.wall_s for step in together) for together in zip(*steps, strict=True))
        samples = [median(step.samples for step in mine) for mine in steps]
        point = ProfilePoint(
            workers=len(self._workers),
            samples_per_s=sum(samples) / step_s if all(samples) and step_s > 0 else 0.0,
            step_s=step_s,
            sync_s=median(step.wall_s - step.own_s for mine in steps for step in mine),
            batches=self._batches,
        )
        self._points.append(point)
        self._todo.pop(0)
        self._steps = {}
        return point
