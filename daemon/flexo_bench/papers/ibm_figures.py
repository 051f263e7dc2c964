"""IBM's figures 5, 6 and 8: jobs completed over time, `throughput` beside fixed batches (IV-D to IV-F)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flexo.policies.fixed_batch import MaxBatch, MinBatch, RandomBatch
from flexo.policies.throughput import Throughput
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table, ratio
from flexo_bench.papers.ibm import PAPER, scenario_of
from flexo_simulation.comparison import Trial
from flexo_simulation.ibm_training import CATEGORIES, Arrivals, generate
from flexo_simulation.records import End
from flexo_simulation.results import SimulatedRun

GPUS: Final = 40
MINUTES: Final = 240
HALF_AN_HOUR: Final = 30.0
READINGS: Final = (None, 10, 5)
"""What k_max is taken to be, both for a job and in the rates; None: all GPUs of the cluster."""
COLUMNS: Final = tuple(f"k_max {k_max or GPUS}" for k_max in READINGS)
DIFFERENCES: Final = (
    "Assumed, because the paper does not print it: what the part `ibm` assumes. k_max is read in three ways:"
    " the cluster's 40 GPUs; 10, the only value in the text; 5, which is nearest to most of figures 5 and 6.",
    "The paper's curves are pictures. Its text prints the ratios of jobs completed, and for Min-BS at the low"
    " rate the completion times. These are left of ours.",
    "40 GPUs, jobs of half an hour on one GPU, arrivals for 240 min, infeasible jobs dropped, Delta 10 min."
    " The simulation goes on until all accepted jobs have ended.",
    "Ours are several seeds: mean (lowest to highest).",
)


@dataclass(frozen=True)
class Panel:
    """A panel of a figure: jobs of one category under two policies. Rates are parts of the high one."""

    label: str
    category: int
    rival: type[MaxBatch | MinBatch | RandomBatch]
    high: float
    low: float
    jobs: float = math.nan
    """Printed ratio of jobs completed, elastic to fixed. nan: not printed."""
    jct: float = math.nan
    """Printed ratio of completion times, elastic to fixed. nan: not printed."""


FIGURES: Final[Mapping[str, tuple[Panel, ...]]] = {
    "figure 5: categories at the high rate": (
        Panel("5a: category 1", 1, RandomBatch, 1.0, 1.0, 1.82),
        Panel("5b: category 2", 2, RandomBatch, 1.0, 1.0, 1.644),
        Panel("5c: category 3", 3, RandomBatch, 1.0, 1.0, 1.90),
        Panel("5d: category 4", 4, RandomBatch, 1.0, 1.0, 1.0),
    ),
    "figure 6: arrivals of category 1": (
        Panel("6a: low rate", 1, RandomBatch, 0.25, 0.25, 1.97),
        Panel("6b: bursty", 1, RandomBatch, 1.0, 0.25, 2.19),
    ),
    "figure 8: Max-BS and Min-BS": (
        Panel("8a: Max-BS, high rate, category 1", 1, MaxBatch, 1.0, 1.0, 10.0),
        Panel("8a: Max-BS, high rate, category 2", 2, MaxBatch, 1.0, 1.0, 10.0),
        Panel("8b: Max-BS, high rate, category 3", 3, MaxBatch, 1.0, 1.0),
        Panel("8b: Max-BS, high rate, category 4", 4, MaxBatch, 1.0, 1.0),
        Panel("8c: Min-BS, high rate, category 1", 1, MinBatch, 1.0, 1.0, 1.0),
        Panel("IV-D: Min-BS, low rate, category 1", 1, MinBatch, 0.25, 0.25, math.nan, 23.04 / 27.39),
    ),
}
"""The panels by figure. Figure 8c is Min-BS at the low rate in the text, at the high rate in the caption."""


def compare(run: Run, seeds: Sequence[int]) -> Comparison:
    """Simulate all panels, under each reading of k_max."""
    tables: list[Table] = []
    for title, panels in FIGURES.items():
        runs = {k_max: _simulate(run, panels, k_max, seeds) for k_max in READINGS}
        for what, figure in (("jobs completed", jobs_more), ("completion time", time_more)):
            rows = tuple(_ratios(panels, runs, figure))
            tables.append(Table(f"{title}: {what}, elastic to fixed", COLUMNS, rows))
        tables.append(
            Table(
                f"{title}: jobs completed by then, k_max {GPUS}",
                CURVES,
                tuple(_curves(panels, runs[None])),
                0,
            )
        )
    return Comparison("ibm-figures", PAPER, DIFFERENCES, tuple(tables))


@dataclass(frozen=True)
class Outcome:
    """The simulations of a panel, by seed."""

    elastic: tuple[SimulatedRun, ...]
    fixed: tuple[SimulatedRun, ...]


Compared = Callable[[Panel, Outcome], Figure]
"""A ratio of a panel's two policies."""


def _simulate(
    run: Run, panels: Sequence[Panel], k_max: int | None, seeds: Sequence[int]
) -> tuple[Outcome, ...]:
    """The outcome of each panel."""
    trials = [trial for panel in panels for seed in seeds for trial in trials_of(panel, k_max, seed)]
    runs, each = run(trials), 2 * len(seeds)
    return tuple(
        Outcome(runs[at * each : (at + 1) * each : 2], runs[at * each + 1 : (at + 1) * each : 2])
        for at in range(len(panels))
    )


def trials_of(panel: Panel, k_max: int | None, seed: int) -> tuple[Trial, Trial]:
    """The two simulations of a panel, elastic and fixed."""
    category = replace(CATEGORIES[panel.category - 1], minutes=HALF_AN_HOUR)
    load = (k_max or GPUS) / GPUS  # "k_max times lambda", as a part of the rate of all GPUs
    arrivals = Arrivals(MINUTES, load * panel.high, load * panel.low, 60.0, (category,))
    workload, scenario = generate(arrivals, GPUS, seed, k_max), scenario_of(GPUS)
    fixed = panel.rival(delta_s=0.0, drops=True)
    if isinstance(fixed, RandomBatch):
        fixed = replace(fixed, seed=seed)
    return (
        Trial("throughput", Throughput(delta_s=0.0, drops=True), workload, scenario),
        Trial(fixed.name, fixed, workload, scenario),
    )


def _ratios(
    panels: Sequence[Panel], runs: Mapping[int | None, Sequence[Outcome]], figure: Compared
) -> list[Row]:
    """A row for each panel, with a column for each reading of k_max."""
    return [
        Row(panel.label, tuple(figure(panel, outcomes[at]) for outcomes in runs.values()))
        for at, panel in enumerate(panels)
    ]


def jobs_more(panel: Panel, outcome: Outcome) -> Figure:
    """The ratio of jobs completed, elastic to fixed."""
    return ratio(
        [each.result.finished for each in outcome.elastic],
        [each.result.finished for each in outcome.fixed],
        panel.jobs,
    )


def time_more(panel: Panel, outcome: Outcome) -> Figure:
    """The ratio of completion times, elastic to fixed."""
    return ratio(
        [each.result.avg_jct_s for each in outcome.elastic],
        [each.result.avg_jct_s for each in outcome.fixed],
        panel.jct,
    )


MARKS: Final = (60, 120, 180, MINUTES)
"""The minutes at which a curve is read."""
CURVES: Final = (*(f"{minute} min" for minute in MARKS), "in the end")


def _curves(panels: Sequence[Panel], outcomes: Sequence[Outcome]) -> list[Row]:
    """Three rows for each panel: the jobs that have arrived, and those completed under each policy."""
    rows = []
    for panel, outcome in zip(panels, outcomes, strict=True):
        arrived = [[each.job.submitted_at for each in one.records] for one in outcome.elastic]
        rows += [
            curve(f"{panel.label}: arrived", arrived, MARKS),
            curve(f"{panel.label}: elastic", [completions(one) for one in outcome.elastic], MARKS),
            curve(f"{panel.label}: {panel.rival.name}", [completions(one) for one in outcome.fixed], MARKS),
        ]
    return rows


def completions(run: SimulatedRun) -> list[float]:
    """The seconds at which jobs were completed, in the order of submission."""
    return [each.ended_at for each in run.records if each.end is End.FINISHED and each.ended_at is not None]


def curve(label: str, times_s: Sequence[Sequence[float]], minutes: Sequence[float]) -> Row:
    """The number of times up to each of the minutes, and of all, by seed. The paper prints none of them."""
    return Row(
        label,
        tuple(
            Figure(math.nan, tuple(float(sum(at <= limit for at in seed)) for seed in times_s))
            for limit in (*(60.0 * minute for minute in minutes), math.inf)
        ),
    )
