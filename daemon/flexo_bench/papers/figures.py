"""The parts of a comparison: a paper's figures beside ours, and differences of the set-ups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexo_simulation.comparison import Trial
from flexo_simulation.results import SimulatedRun

Run = Callable[[Sequence[Trial]], tuple[SimulatedRun, ...]]
"""A function that carries out simulations."""


@dataclass(frozen=True)
class Figure:
    """One figure of a paper, and ours for each seed or workload; nan: there is none."""

    paper: float
    """The paper's figure; nan: the paper prints none."""
    ours: tuple[float, ...]
    mean: float = math.nan
    """Mean of ours, if it is not the plain mean; nan: the plain mean."""

    @property
    def middle(self) -> float:
        """The single value that represents all of ours."""
        if not math.isnan(self.mean):
            return self.mean
        return sum(self.ours) / len(self.ours) if self.ours else math.nan


@dataclass(frozen=True)
class Row:
    """The figures of one case, by column."""

    label: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Table:
    """A table with a row of figures for each case."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    digits: int = 2


@dataclass(frozen=True)
class Comparison:
    """A paper's figures beside ours, with the differences of the set-ups."""

    name: str
    paper: str
    differences: tuple[str, ...]
    """One sentence for each difference of the set-ups."""
    tables: tuple[Table, ...]


def ratio(over: Sequence[float], under: Sequence[float], paper: float) -> Figure:
    """A figure of the ratios of all seeds, whose mean is the ratio of the sums."""
    each = tuple(a / b if b else math.inf for a, b in zip(over, under, strict=True))
    return Figure(paper, each, sum(over) / sum(under) if sum(under) else math.inf)
