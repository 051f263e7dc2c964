"""What a comparison is made of: figures that a paper prints beside ours, and how the set-ups differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexo_simulation.comparison import Trial
from flexo_simulation.results import Outcome

Run = Callable[[Sequence[Trial]], tuple[Outcome, ...]]
"""Carries simulations out."""


@dataclass(frozen=True)
class Figure:
    """One figure, and ours by seed or workload; nan: there is none."""

    paper: float
    """nan: the paper prints none."""
    ours: tuple[float, ...]
    mean: float = math.nan
    """Of ours, where it is not the plain mean; nan: it is."""

    @property
    def middle(self) -> float:
        """What stands for all of ours."""
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
    """Cases by figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    digits: int = 2


@dataclass(frozen=True)
class Comparison:
    """A paper's figures and ours."""

    name: str
    paper: str
    differences: tuple[str, ...]
    """Each difference in set-up, a sentence."""
    tables: tuple[Table, ...]


def ratio(over: Sequence[float], under: Sequence[float], paper: float) -> Figure:
    """A ratio by seed, and that of the sums."""
    each = tuple(a / b if b else math.inf for a, b in zip(over, under, strict=True))
    return Figure(paper, each, sum(over) / sum(under) if sum(under) else math.inf)
