"""Jobs of traces with durations that scale as a measured model does: ElasticFlow's tables.

`<model>.csv` has a line for each global batch size: iterations per second on 1, 2, 4, ... GPUs (Gu et al.,
"ElasticFlow", ASPLOS 2023). A trace's duration is the time on the GPUs that it names.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexo.scalability.table import BadTable, TableSpeed
from flexo_simulation.linear_training import LinearTraining


@dataclass(frozen=True, slots=True)
class Tables:
    """Speeds by model and global batch size, in iterations a second."""

    speeds: Mapping[tuple[str, int], TableSpeed]

    def of(self, model: str, batch: int) -> TableSpeed:
        """The speed of a model with a batch. Raises BadTable if that was not measured."""
        speed = self.speeds.get((model, batch))
        if speed is None:
            raise BadTable(f"nobody has measured {model} with a batch of {batch}")
        return speed


def load_tables(folder: Path) -> Tables:
    """Load all tables in `folder`, which must have one. Raises BadTable, with file and line, or OSError."""
    speeds: dict[tuple[str, int], TableSpeed] = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            rows = csv.reader(file)
            sizes = next(rows, [])[1:]
            for row in rows:
                try:
                    batch = int(row[0])
                    speeds[path.stem, batch] = TableSpeed.of(_rates(sizes, row[1:]))
                except ValueError as error:
                    raise BadTable(f"{path}, line {rows.line_num}: {error}") from error
    if not speeds:
        raise BadTable(f"{folder} has no tables of throughput")
    return Tables(speeds)


def _rates(sizes: list[str], cells: list[str]) -> dict[int, float]:
    """The measured rates by size; an empty cell was not measured."""
    return {int(size): _rate(cell) for size, cell in zip(sizes, cells, strict=True) if cell}


def _rate(cell: str) -> float:
    rate = float(cell)
    if not math.isfinite(rate) or rate < 0:
        raise ValueError(f"'{cell}' is no throughput")
    return rate


def table_training(duration_s: float, workers: int, speed: TableSpeed) -> LinearTraining:
    """A job that takes `duration_s` on `workers`; its work is counted in the unit of `speed`."""
    return LinearTraining(duration_s * speed.rate(workers), speed)
