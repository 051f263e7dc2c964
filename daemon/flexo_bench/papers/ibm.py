"""IBM's tables III and IV: `throughput` beside random batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.fixed_batch import RandomBatch
from flexo.policies.throughput import Throughput
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table, ratio
from flexo_simulation.comparison import Trial
from flexo_simulation.ibm_training import CATEGORIES, Arrivals, Category, generate
from flexo_simulation.results import Result
from flexo_simulation.scenario import Scenario

PAPER = 'Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads"'
GPUS_OF_NODE = 2
DELTA_S = 600.0
"""The smallest Delta that the paper advises (section V-B)."""
DELTAS_S = (DELTA_S, 300.0, 120.0, 0.0)
"""Values of Delta for which the tables are made; 0: a decision at each event."""
DIFFERENCES = (
    "Assumed, because the paper does not print it: step times (one model for all categories, which gives"
    " table II within 2% and the 1.6 of section IV-D), the largest batch a GPU of categories 2 and 3, the"
    " rates of arrival (one job a GPU in the high phase, a quarter in the low one), k_max (all GPUs of the"
    " cluster), Delta, seeds. What these do to the ratios is in a table of its own.",
    "Their simulator has no restart cost, and neither has ours here. Infeasible jobs are dropped, or queued,"
    " and the head of the queue retried.",
    "Delta: decisions at multiples of it, as the text says of all experiments (IV-B), but not how long it is."
    " At each event: at arrivals and completions, as it says of the simulator (III-E).",
    "Theirs is one run of unknown seed; ours are several: mean (lowest to highest).",
)


@dataclass(frozen=True)
class Setup:
    """The simulations of one table."""

    gpus: int
    minutes: float
    delta_s: float = DELTA_S
    """Interval of decisions; 0: a decision at each event."""
    k_max: int | None = None
    high: float = 1.0
    categories: tuple[Category, ...] = CATEGORIES

    @property
    def arrivals(self) -> Arrivals:
        """The arrivals of the jobs."""
        return Arrivals(self.minutes, self.high, self.high / 4, categories=self.categories)


@dataclass(frozen=True)
class Printed:
    """A row of table III (their simulator) or IV. nan: not printed."""

    sjs: float
    drops: float
    jct_min: float


ELASTIC_DROP, FIXED_DROP, ELASTIC_QUEUE, FIXED_QUEUE = range(4)
CASES = ("elastic, drop", "Random-BS, drop", "elastic, queue", "Random-BS, queue")
PRINTED = {
    "III": (
        Printed(80.46, 10.09, 22.98),
        Printed(50.49, 39.57, 28.10),
        Printed(86.03, math.nan, 27.75),
        Printed(41.94, math.nan, 320.32),
    ),
    "IV": (
        Printed(81.00, 1.23, 22.83),
        Printed(46.64, 38.28, 27.84),
        Printed(81.53, math.nan, 22.96),
        Printed(43.10, math.nan, 166.82),
    ),
}
SETUPS = {"III": Setup(40, 720.0), "IV": Setup(400, 480.0)}


def compare(run: Run, seeds: Sequence[int]) -> Comparison:
    """Simulate both tables."""
    tables: list[Table] = []
    ratios: list[Row] = []
    for number, setup in SETUPS.items():
        for delta_s in DELTAS_S:
            when = f"Delta {delta_s / 60:.0f} min" if delta_s else "at each event"
            results = _simulate(run, replace(setup, delta_s=delta_s), seeds)
            title = f"table {number}: {setup.gpus} GPUs, {setup.minutes:.0f} min, {when}"
            tables.append(_as_printed(title, results, PRINTED[number]))
            ratios.append(Row(f"table {number}, {when}", _ratios(results, number)))
    tables.append(Table("ratios: what elasticity of the batch gains", RATIOS, tuple(ratios)))
    tables.append(_assumptions(run, seeds))
    return Comparison("ibm", PAPER, DIFFERENCES, tuple(tables))


def _simulate(run: Run, setup: Setup, seeds: Sequence[int]) -> tuple[tuple[Result, ...], ...]:
    """Results by case, then by seed."""
    trials = [trial for seed in seeds for trial in trials_of(setup, seed)]
    results = [outcome.result for outcome in run(trials)]
    return tuple(tuple(results[case :: len(CASES)]) for case in range(len(CASES)))


def trials_of(setup: Setup, seed: int) -> Iterator[Trial]:
    """The simulations of a table with this seed, in the order of CASES."""
    workload = generate(setup.arrivals, setup.gpus, seed, setup.k_max)
    scenario = scenario_of(setup.gpus, setup.delta_s)
    for drops in (True, False):
        flexible = Throughput(delta_s=0.0, drops=drops, overtaking=False)
        yield Trial("throughput", flexible, workload, scenario)
        random = RandomBatch(delta_s=0.0, drops=drops, overtaking=False, seed=seed)
        yield Trial("random-batch", random, workload, scenario)


def scenario_of(gpus: int, delta_s: float = DELTA_S) -> Scenario:
    """The scenario. Delta is the simulator's interval, so that decisions are at multiples of Delta."""
    return Scenario((NodeGroup(gpus // GPUS_OF_NODE, GPUS_OF_NODE),), interval_s=delta_s or None)


COLUMNS = ("SJS efficiency %", "dropped %", "completion, min")


def _as_printed(title: str, results: Sequence[Sequence[Result]], printed: Sequence[Printed]) -> Table:
    rows = [
        Row(
            case,
            (
                Figure(paper.sjs, tuple(100 * result.sjs_efficiency for result in ours)),
                Figure(paper.drops, tuple(100 * result.drop_ratio for result in ours)),
                Figure(paper.jct_min, tuple(result.avg_jct_s / 60 for result in ours)),
            ),
        )
        for case, paper, ours in zip(CASES, printed, results, strict=True)
    ]
    return Table(title, COLUMNS, tuple(rows))


RATIOS = ("SJS with drops", "drops", "completion, queued")


def _ratios(results: Sequence[Sequence[Result]], number: str) -> tuple[Figure, ...]:
    """The gains of elasticity: efficiency elastic to fixed, drops and completion times fixed to elastic."""
    printed = PRINTED[number]
    sjs, drops, jct = (
        [[getattr(result, name) for result in case] for case in results]
        for name in ("sjs_efficiency", "drop_ratio", "avg_jct_s")
    )
    return (
        ratio(sjs[ELASTIC_DROP], sjs[FIXED_DROP], printed[ELASTIC_DROP].sjs / printed[FIXED_DROP].sjs),
        ratio(
            drops[FIXED_DROP], drops[ELASTIC_DROP], printed[FIXED_DROP].drops / printed[ELASTIC_DROP].drops
        ),
        ratio(
            jct[FIXED_QUEUE],
            jct[ELASTIC_QUEUE],
            printed[FIXED_QUEUE].jct_min / printed[ELASTIC_QUEUE].jct_min,
        ),
    )


def _largest(of_category_2: int, of_category_3: int) -> tuple[Category, ...]:
    first, second, third, fourth = CATEGORIES
    return (
        first,
        replace(second, largest_per_gpu=of_category_2),
        replace(third, largest_per_gpu=of_category_3),
        fourth,
    )


def _assumptions(run: Run, seeds: Sequence[int]) -> Table:
    """The ratios of table III, each row with one assumption changed."""
    setup = SETUPS["III"]
    variants = {
        "as assumed": setup,
        "category 2: 16 a GPU": replace(setup, categories=_largest(16, 128)),
        "category 3: 64 a GPU": replace(setup, categories=_largest(32, 64)),
        "categories 2 and 3: 32 a GPU": replace(setup, categories=_largest(32, 32)),
        "categories 2 and 3: 128 a GPU": replace(setup, categories=_largest(128, 128)),
        "k_max 10": replace(setup, k_max=10),
        "k_max 5": replace(setup, k_max=5),
        "rates 0.8 times as high": replace(setup, high=0.8),
        "rates 1.2 times as high": replace(setup, high=1.2),
    }
    rows = [Row(label, _ratios(_simulate(run, variant, seeds), "III")) for label, variant in variants.items()]
    return Table("what each assumption does to table III, Delta 10 min", RATIOS, tuple(rows))
