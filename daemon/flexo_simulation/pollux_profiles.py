"""The measurements of six applications by Pollux' authors: step times by placement, gradients by epoch.

Each application has a folder, as in petuum/adaptdl's branch osdi21-artifact: `placements.csv` and
`scalability.csv` (step times), `validation-<batch>.csv` (one row per epoch). This is the hidden truth of
simulated jobs: only `pollux_training` reads it.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from flexo.model.ranges import Range
from flexo.scalability.gradient_noise import GradientStatistics
from flexo.scalability.local_batch import BatchLimits
from flexo.scalability.step_times import StepTime

_MOST_NODES = 16
"""The number of nodes at which placements over more nodes are looked up (Pollux' artifact)."""


class BadProfile(ValueError):
    """The error for a profile that is missing or makes no sense; the message names its file."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The facts on an application that are not in its files: Pollux' artifact has them in its code."""

    max_epochs: int
    most_local_samples: int | None = None
    """The most samples per GPU; None: the most that was measured."""


DECLARED = {
    "bert": Declared(2),
    "cifar10": Declared(100),
    "ncf": Declared(10),
    "imagenet": Declared(90),
    "deepspeech2": Declared(80),
    "yolov3": Declared(50, most_local_samples=8),
}


@lru_cache(maxsize=64)
def load_application(folder: Path, name: str) -> Application:
    """Load the application `name`, whose files are in `folder`/`name`. Raises BadProfile."""
    if name not in DECLARED:
        raise BadProfile(f"'{name}' is none of the applications {', '.join(DECLARED)}")
    try:
        return Application(name, DECLARED[name], folder / name)
    except (OSError, ValueError) as error:
        raise BadProfile(f"{folder / name}: {error}") from error


class Application:
    """The truth about one application. Immutable, except for cached look-ups."""

    def __init__(self, name: str, declared: Declared, folder: Path) -> None:
        self.name = name
        self.max_epochs = declared.max_epochs
        self.step_times = StepTimes(folder)
        self.epochs = Epochs(folder, declared.max_epochs)
        measured = self.step_times.local_samples
        self.limits = BatchLimits(
            initial=self.epochs.batches[0],
            largest=self.epochs.batches[-1],
            local=Range(measured.min, declared.most_local_samples or measured.max),
        )


class StepTimes:
    """Step times by placement and samples per GPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        by_placement: dict[tuple[int, ...], list[tuple[int, float, float]]] = defaultdict(list)
        for placement, local, step, sync in zip(
            *_columns(folder / "placements.csv", "placement", "local_bsz", "step_time", "sync_time"),
            strict=True,
        ):
            by_placement[tuple(map(int, placement))].append((int(local), float(step), float(sync)))
        self._measured = {placement: np.array(sorted(points)).T for placement, points in by_placement.items()}
        sizes = [point[0] for points in by_placement.values() for point in points]
        self.local_samples = Range(min(sizes), max(sizes))
        self._surface: _Surface | None = None
        self._known: dict[tuple[tuple[int, ...], int], StepTime] = {}

    def of(self, placement: tuple[int, ...], local: int) -> StepTime:
        """The time of one step with `local` samples on each GPU; `placement`: the GPUs on each node, none 0.

        Raises ValueError if this is outside of what was measured.
        """
        key = (placement, local)
        if key not in self._known:
            self._known[key] = self._look_up(_first_rotation(placement), local)
        return self._known[key]

    def _look_up(self, placement: tuple[int, ...], local: int) -> StepTime:
        measured = self._measured.get(placement)
        if measured is None:
            return self._off_the_table(placement, local)
        sizes, steps, syncs = measured
        if not sizes[0] <= local <= sizes[-1]:
            raise ValueError(f"placement {placement}: {local} samples a GPU were never measured")
        return StepTime(float(np.interp(local, sizes, steps)), float(np.interp(local, sizes, syncs)))

    def _off_the_table(self, placement: tuple[int, ...], local: int) -> StepTime:
        if self._surface is None:
            self._surface = _Surface(self._points())
        return self._surface.at(min(len(placement), _MOST_NODES), sum(placement), local)

    def _points(self) -> Iterator[tuple[int, int, int, float, float]]:
        """The points (nodes, GPUs, samples per GPU, step time, sync time): means of placements, then the
        other file.

        They are in this order, because the triangulation of points on a common sphere depends on it.
        """
        same: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
        for placement, (sizes, steps, syncs) in self._measured.items():
            for size, step, sync in zip(sizes, steps, syncs, strict=True):
                same[len(placement), sum(placement), int(size)].append((float(step), float(sync)))
        for point, times in sorted(same.items()):
            yield *point, *np.mean(times, axis=0)
        names = "num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"
        for nodes, gpus, local, step, sync in zip(
            *_columns(self._folder / "scalability.csv", *names), strict=True
        ):
            yield int(nodes), int(gpus), int(local), float(step), float(sync)


class _Surface:
    """Linear interpolation over Delaunay simplices, as SciPy's LinearNDInterpolator does it.

    SciPy itself finds the simplex, because a few of them overlap where many points lie on one sphere. It does
    so on one thread: with more, it would wait for all cores at each of its thousands of small matrices.
    """

    def __init__(self, points: Iterable[tuple[int, int, int, float, float]]) -> None:
        from scipy.spatial import Delaunay  # half of the start of `flexo simulate`, and few traces need it

        table = np.array(list(points), dtype=float)
        self._triangulation = Delaunay(table[:, :3])
        self._values = table[:, 3:]

    def at(self, nodes: int, gpus: int, local: int) -> StepTime:
        """The interpolated step time. Raises ValueError outside of what was measured."""
        point = np.array([nodes, gpus, local], dtype=float)
        with threadpool_limits(1, user_api="blas"):
            simplex = int(self._triangulation.find_simplex(point))
            transform = self._triangulation.transform[simplex]
        if simplex < 0:
            raise ValueError(f"{gpus} GPUs on {nodes} nodes with {local} samples each were never measured")
        weights = (transform[:3] * (point - transform[3])).sum(axis=1)
        corners = self._values[self._triangulation.simplices[simplex]]
        step_s, sync_s = np.append(weights, 1 - weights.sum()) @ corners
        return StepTime(float(step_s), float(sync_s))


class Epochs:
    """Progress at which epochs end, and the gradients in each epoch, by validated batch size."""

    def __init__(self, folder: Path, max_epochs: int) -> None:
        files = {_batch_of(path): path for path in folder.glob("validation-*.csv")}
        if not files:
            raise FileNotFoundError("no validation-*.csv")
        self.batches = tuple(sorted(files))
        progress = []
        self._gradients = []
        for batch in self.batches:
            ends, squares, variances = _columns(files[batch], "progress", "grad_sqr", "grad_var")
            if len(ends) < max_epochs:
                raise ValueError(f"{files[batch].name} has {len(ends)} epochs of {max_epochs}")
            progress.append([float(end) for end in ends[:max_epochs]])
            self._gradients.append(
                [
                    GradientStatistics(float(square), float(variance))
                    for square, variance in zip(squares, variances, strict=True)
                ]
            )
        self.ends: tuple[float, ...] = tuple(map(min, zip(*progress, strict=True)))
        """Progress at which each epoch ends: the smallest of all batch sizes."""

    def gradients(self, batch: int, epoch: int) -> GradientStatistics:
        """The gradients in this epoch, counted from 0, interpolated linearly between validated batch sizes.

        Raises ValueError outside of these sizes.
        """
        above = bisect_left(self.batches, batch)
        if above == len(self.batches) or batch < self.batches[0]:
            raise ValueError(f"a batch of {batch} samples was never validated")
        high = self._gradients[above][epoch]
        if self.batches[above] == batch:
            return high
        low = self._gradients[above - 1][epoch]
        share = (batch - self.batches[above - 1]) / (self.batches[above] - self.batches[above - 1])
        return GradientStatistics(
            low.square + share * (high.square - low.square),
            low.variance + share * (high.variance - low.variance),
        )


def _first_rotation(placement: tuple[int, ...]) -> tuple[int, ...]:
    return min(placement[start:] + placement[:start] for start in range(len(placement)))


def _batch_of(path: Path) -> int:
    match = re.fullmatch(r"validation-(\d+)", path.stem)
    if match is None:
        raise ValueError(f"{path.name} does not name a batch size")
    return int(match[1])


def _columns(path: Path, *names: str) -> list[tuple[str, ...]]:
    """The named columns of a file with a header. Raises ValueError if one column, or every row, is
    missing."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    header = rows.pop(0) if rows else []
    missing = set(names) - set(header)
    if missing or not rows:
        raise ValueError(f"{path.name} has no {' and no '.join(sorted(missing)) or 'rows'}")
    columns = list(zip(*rows, strict=True))
    return [columns[header.index(name)] for name in names]
