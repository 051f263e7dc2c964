"""The measurements of six applications by Pollux' authors: step times by placement, gradients by epoch.

Each application has a folder, as in petuum/adaptdl's branch osdi21-artifact: `placements.csv` and
`scalability.csv` (step times), `validation-<batch>.csv` (one row per epoch). Sia's artifact has the same
files, with step times for each GPU type: `placements-<type>.csv` and `scalability-<type>.csv`. This is the
hidden truth of simulated jobs: only `pollux_training` reads it.
"""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
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
    """The facts on an application that are not in its files: the artifacts have them in their code."""

    max_epochs: int
    most_local_samples: int | None = None
    """The most samples per GPU; None: the most that was measured."""
    slowdown: float = 1.0
    """The duration of a real step, relative to the measured one (Sia's calibration)."""
    room_by_placement: bool = False
    """Whether a GPU holds no more samples than were measured on its job's placement (Sia)."""


DECLARED = {
    "bert": Declared(2),
    "cifar10": Declared(100),
    "ncf": Declared(10),
    "imagenet": Declared(90),
    "deepspeech2": Declared(80),
    "yolov3": Declared(50, most_local_samples=8),
}


def load_application(folder: Path, name: str) -> Application:
    """Load the application `name`, whose files are in `folder`/`name`. Raises BadProfile."""
    if name not in DECLARED:
        raise BadProfile(f"'{name}' is none of the applications {', '.join(DECLARED)}")
    return load_declared(folder, name, DECLARED[name])


@lru_cache(maxsize=64)
def load_declared(folder: Path, name: str, declared: Declared, gpu_type: str = "") -> Application:
    """Load the application `name`, as measured on `gpu_type` ("": there is one type). Raises BadProfile."""
    try:
        return Application(name, declared, folder / name, gpu_type)
    except (OSError, ValueError) as error:
        raise BadProfile(f"{folder / name}: {error}") from error


class Application:
    """The truth about one application on one GPU type. Immutable, except for cached look-ups."""

    def __init__(self, name: str, declared: Declared, folder: Path, gpu_type: str = "") -> None:
        self.name = name
        self.max_epochs = declared.max_epochs
        self.step_times = StepTimes(folder, gpu_type, declared.slowdown)
        self.epochs = Epochs(folder, declared.max_epochs)
        measured = self.step_times.local_samples
        self.limits = BatchLimits(
            initial=self.epochs.batches[0],
            largest=self.epochs.batches[-1],
            local=Range(measured.min, declared.most_local_samples or measured.max),
        )
        self._room_by_placement = declared.room_by_placement

    @cached_property
    def trial_s(self) -> float:
        """Seconds that one worker takes for a sample, with the fewest samples a step that were measured."""
        samples = self.limits.local.min
        return self.step_times.of((1,), samples).step_s / samples

    def limits_on(self, placement: tuple[int, ...]) -> BatchLimits:
        """The batches that the GPUs of this placement hold. Raises ValueError if nothing like it was
        measured."""
        if not self._room_by_placement:
            return self.limits
        local = self.limits.local
        most = max(local.min, min(local.max, self.step_times.most_local(placement)))
        return replace(self.limits, local=Range(local.min, most))


class StepTimes:
    """Step times by placement and samples per GPU."""

    def __init__(self, folder: Path, gpu_type: str = "", slowdown: float = 1.0) -> None:
        suffix = f"-{gpu_type}" if gpu_type else ""
        self._scalability = folder / f"scalability{suffix}.csv"
        self._slowdown = slowdown
        by_placement: dict[tuple[int, ...], list[tuple[int, float, float]]] = defaultdict(list)
        for row in _rows(
            folder / f"placements{suffix}.csv", "placement", "local_bsz", "step_time", "sync_time"
        ):
            by_placement[row.digits("placement")].append(
                (row.whole("local_bsz"), row.number("step_time"), row.number("sync_time"))
            )
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
        return self._slowed(float(np.interp(local, sizes, steps)), float(np.interp(local, sizes, syncs)))

    def most_local(self, placement: tuple[int, ...]) -> int:
        """The most samples per GPU that were measured on `placement`, or on as many nodes and GPUs or more.

        Raises ValueError if there are no such measurements.
        """
        measured = self._measured.get(_first_rotation(placement))
        if measured is not None:
            return int(measured[0][-1])
        nodes, gpus = len(placement), sum(placement)
        sizes = [row.local for row in self._by_size if row.nodes >= nodes and row.gpus >= gpus]
        if not sizes:
            raise ValueError(f"{gpus} GPUs on {nodes} nodes were never measured")
        return max(sizes)

    def _slowed(self, step_s: float, sync_s: float) -> StepTime:
        return StepTime(self._slowdown * step_s, self._slowdown * sync_s)

    def _off_the_table(self, placement: tuple[int, ...], local: int) -> StepTime:
        if self._surface is None:
            self._surface = _Surface(self._points())
        time = self._surface.at(min(len(placement), _MOST_NODES), sum(placement), local)
        return self._slowed(time.step_s, time.sync_s)

    @cached_property
    def _by_size(self) -> tuple[_BySize, ...]:
        names = "num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"
        return tuple(
            _BySize(
                row.whole("num_nodes"),
                row.whole("num_replicas"),
                row.whole("local_bsz"),
                row.number("step_time"),
                row.number("sync_time"),
            )
            for row in _rows(self._scalability, *names)
        )

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
        for row in self._by_size:
            yield row.nodes, row.gpus, row.local, row.step_s, row.sync_s


@dataclass(frozen=True, slots=True)
class _BySize:
    """A step time on any placement with this number of nodes and GPUs."""

    nodes: int
    gpus: int
    local: int
    step_s: float
    sync_s: float


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
            rows = _rows(files[batch], "progress", "grad_sqr", "grad_var")
            if len(rows) < max_epochs:
                raise ValueError(f"{files[batch].name} has {len(rows)} epochs of {max_epochs}")
            progress.append([row.number("progress") for row in rows[:max_epochs]])
            self._gradients.append(
                [GradientStatistics(row.number("grad_sqr"), row.number("grad_var")) for row in rows]
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


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a profile: its cells by column."""

    where: str
    """The file and the line, for errors."""
    cells: Mapping[str, str]

    def number(self, column: str) -> float:
        """The cell as a number from 0. Raises ValueError."""
        return self._from_0(column, "a number from 0")

    def whole(self, column: str) -> int:
        """The cell as a whole number. Raises ValueError."""
        takes = "a whole number from 0"
        value = self._from_0(column, takes)
        if not value.is_integer():
            raise self._refusal(column, takes)
        return int(value)

    def digits(self, column: str) -> tuple[int, ...]:
        """The digits of a placement: the GPUs on each node. Raises ValueError."""
        cell = self.cells[column].strip()
        if not (cell.isascii() and cell.isdigit()) or "0" in cell:
            raise self._refusal(column, "a digit from 1 to 9 for each node")
        return tuple(map(int, cell))

    def _from_0(self, column: str, takes: str) -> float:
        try:
            value = float(self.cells[column])
        except ValueError:
            raise self._refusal(column, takes) from None
        if not 0 <= value < math.inf:
            raise self._refusal(column, takes)
        return value

    def _refusal(self, column: str, takes: str) -> ValueError:
        return ValueError(f"{self.where}: {column} is '{self.cells[column]}': it takes {takes}")


def _rows(path: Path, *names: str) -> list[_Row]:
    """The lines of a file with a header. Raises ValueError if one column, one cell or every row is
    missing."""
    with path.open(newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        missing = set(names) - set(header)
        if missing:
            raise ValueError(f"{path.name} has no {' and no '.join(sorted(missing))}")
        rows = []
        for cells in reader:
            where = f"{path.name}:{reader.line_num}"
            if len(cells) != len(header):
                raise ValueError(f"{where}: has {len(cells)} cells where the header has {len(header)}")
            rows.append(_Row(where, dict(zip(header, cells, strict=True))))
    if not rows:
        raise ValueError(f"{path.name} has no rows")
    return rows
