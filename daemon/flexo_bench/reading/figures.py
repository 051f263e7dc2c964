"""The figures of all looks: medians, their intervals, and the table of them. Pure functions."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flexo_bench.reading.looks import Cost

_DRAWS = 4000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured look."""

    cost: Cost
    slurmctld_cpu_s: float
    """slurmctld's processor time during the look, whatever it worked for."""
    rpcs: int
    """Remote procedure calls that slurmctld answered for it."""
    rpcs_s: float
    """slurmctld's time for these calls by its own count (sdiag), the wait for its locks included."""


@dataclass(frozen=True, slots=True)
class Middle:
    """A median or a quartile, and its 95% interval (bootstrap over looks)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of each look: its name for the table, and how to get it. Seconds."""

    name: str
    of: Callable[[Measured], float]
    quiet: bool = False
    """Whether slurmctld's own work is in it, too: then the first quartile says more than the median."""

    def among(self, looks: Sequence[Measured]) -> Middle:
        """The figure of all looks."""
        values = [self.of(look) for look in looks]
        return quartile(values) if self.quiet else middle(values)


ROWS = (
    Row("wall time", lambda look: look.cost.wall_s),
    Row("processor time of flexod's side", lambda look: look.cost.cpu_s),
    Row("of it in flexod's own process", lambda look: look.cost.own_cpu_s),
    Row("processor time of slurmctld, first quartile", lambda look: look.slurmctld_cpu_s, quiet=True),
    Row("slurmctld's time for the calls (sdiag), first quartile", lambda look: look.rpcs_s, quiet=True),
)


def middle(values: Sequence[float]) -> Middle:
    """The median of the values, and its interval. `values`: one or more."""
    return _drawn(values, statistics.median)


def quartile(values: Sequence[float]) -> Middle:
    """The first quartile of the values, and its interval. `values`: two or more."""
    return _drawn(values, lambda some: statistics.quantiles(some, n=4, method="inclusive")[0])


def _drawn(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> Middle:
    chance = random.Random(_SEED)
    drawn = sorted(of(chance.choices(values, k=len(values))) for _ in range(_DRAWS))
    outside = _DRAWS * 25 // 1000
    return Middle(of(values), drawn[outside], drawn[-1 - outside])


def ratio(above: Sequence[float], below: Sequence[float]) -> Middle:
    """The median of the ratios of looks of one round."""
    return middle([one / other if other else float("nan") for one, other in zip(above, below, strict=True)])


def table(looks: Mapping[str, Sequence[Measured]], peaks: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Markdown: a column for each reader, a row for each figure."""
    yield f"| seconds, median (95% interval) | {' | '.join(looks)} |"
    yield f"| --- |{' --- |' * len(looks)}"
    for row in ROWS:
        cells = [str(row.among(of_reader)) for of_reader in looks.values()]
        yield f"| {row.name} | {' | '.join(cells)} |"
    calls = [f"{statistics.median(look.rpcs for look in of_reader):g}" for of_reader in looks.values()]
    yield f"| calls to slurmctld | {' | '.join(calls)} |"
    for index, name in enumerate(("flexod's own process", "it and its children together")):
        cells = [f"{peaks[reader][index]:.0f} MiB" for reader in looks]
        yield f"| peak memory: {name} | {' | '.join(cells)} |"
