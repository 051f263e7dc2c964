"""Lyra's gains beside ours without loaning: elastic `lyra` and EASY backfilling on Philly jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.backfill import Backfill
from flexo.policies.base import Policy
from flexo.policies.lyra import Lyra
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table
from flexo_simulation.comparison import Trial
from flexo_simulation.costs import MEASURED
from flexo_simulation.elasticity import Elasticity, Of, made_elastic
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats import philly
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.results import Result
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

PAPER = 'Li et al., "Lyra: Elastic Scheduling for Deep Learning Clusters" (EuroSys 2023), slides'
NODES = NodeGroup(50, 8)
SEED = 1
CHOICES = 10
"""How often the elastic jobs are drawn."""
FIRST_JOBS = 20_000
"""The jobs with which each draw is simulated: ten times the whole trace would take hours."""
DIFFERENCES = (
    "All of Lyra's rows include inference servers on loan, on which elastic and fungible jobs run; ours"
    " have none: there is no printed row to compare with like for like. Printed here: Basic and Ideal to"
    " their Baseline.",
    "Their trace (15 days, 50,390 jobs, 3,544 V100s) is not public: Microsoft's Philly trace, 82,247 jobs,"
    " on 50 nodes of 8 GPUs.",
    "Their Baseline is without loaning and elasticity; ours is EASY backfilling, told the same running"
    " times.",
    "Basic has 5% of jobs elastic, large ones that hold about 36% of resources; the range is not printed."
    " Ours: 20% or all of the jobs of several GPUs, from half to twice what they ask for. In Ideal all jobs"
    " are elastic, and may run on any GPU.",
    "Speeds are linear in the workers, as in Basic and Ideal.",
    f"A start costs {MEASURED.start_s:g} s and a resize {MEASURED.resize_s:g} s, as measured with flexo;"
    " theirs are not printed.",
    "Running times: of an oracle, and from the history of the user's like jobs. The trace names no users, so"
    " that history is the median of all that have ended.",
)


@dataclass(frozen=True)
class Printed:
    """A row of the paper's table, in seconds."""

    label: str
    queue: tuple[float, float, float]
    """Mean, median, 95th percentile."""
    jct: tuple[float, float, float]


BASELINE = Printed("Baseline", (3072, 55, 8357), (16610, 791, 82933))
BASIC = Printed("Basic", (2010, 26, 3358), (11236, 568, 56477))
IDEAL = Printed("Ideal", (1157, 22, 3204), (8891, 422, 41146))
NOTHING = Printed("-", (math.nan,) * 3, (math.nan,) * 3)
COLUMNS = ("queueing mean", "median", "p95", "completion mean", "median", "p95")
FIGURES = ("avg_queue_s", "median_queue_s", "p95_queue_s", "avg_jct_s", "median_jct_s", "p95_jct_s")


def compare(run: Run, traces: Path, most_jobs: int | None) -> Comparison:
    """Simulate with running times of an oracle, and of history. `most_jobs`: only the first N jobs."""
    raw = philly.read(traces / "philly" / "philly.csv", ReadOptions())
    raw = Workload(raw.name, raw.jobs[:most_jobs])
    some, every = (
        made_elastic(raw, Elasticity(share=share, of=of, min_factor=0.5, max_factor=2.0), SEED)
        for share, of in ((0.2, Of.MULTI), (1.0, Of.MULTI))
    )
    tables: list[Table] = []
    for mode in (Mode.ORACLE, Mode.HISTORY):
        policies: Sequence[tuple[str, Policy, Workload, Printed]] = (
            ("backfill", Backfill(), raw, BASELINE),
            ("lyra, nothing elastic", Lyra(), raw, NOTHING),
            ("lyra, 20% of multi-GPU jobs elastic", Lyra(), some, BASIC),
            ("lyra, all multi-GPU jobs elastic", Lyra(), every, IDEAL),
        )
        scenario = Scenario((NODES,), MEASURED, estimates=Estimates(mode))
        outcomes = run([Trial(label, policy, jobs, scenario) for label, policy, jobs, _ in policies])
        results = [outcome.result for outcome in outcomes]
        printed = [row for *_, row in policies]
        title = f"running times: {mode.value}; {len(raw.jobs)} jobs"
        tables.append(_seconds(title, printed, [label for label, *_ in policies], results))
        tables.append(_ratios(title, printed, [label for label, *_ in policies], results))
    tables.append(_choices(run, Workload(raw.name, raw.jobs[:FIRST_JOBS])))
    return Comparison("lyra", PAPER, DIFFERENCES, tuple(tables))


def _choices(run: Run, raw: Workload) -> Table:
    """20% elastic by history, for each of ten draws of the elastic jobs, beside nothing elastic."""
    scenario = Scenario((NODES,), MEASURED, estimates=Estimates(Mode.HISTORY))
    drawn = [
        made_elastic(raw, Elasticity(share=0.2, of=Of.MULTI, min_factor=0.5, max_factor=2.0), seed)
        for seed in range(1, CHOICES + 1)
    ]
    trials = [Trial(f"choice {number}", Lyra(), jobs, scenario) for number, jobs in enumerate(drawn, 1)]
    results = [each.result for each in run([Trial("nothing elastic", Lyra(), raw, scenario), *trials])]
    rows = [
        Row(
            trial.label,
            tuple(
                Figure(math.nan, (_over(getattr(result, name), getattr(results[0], name)),))
                for name in FIGURES
            ),
        )
        for trial, result in zip(trials, results[1:], strict=True)
    ]
    title = f"running times: history; {len(raw.jobs)} jobs; 20% elastic to nothing elastic"
    return Table(title, COLUMNS, tuple(rows))


def _seconds(
    title: str, printed: Sequence[Printed], labels: Sequence[str], results: Sequence[Result]
) -> Table:
    rows = [
        Row(
            f"{label} ({paper.label})",
            tuple(
                Figure(theirs, (getattr(result, name),))
                for theirs, name in zip((*paper.queue, *paper.jct), FIGURES, strict=True)
            ),
        )
        for label, paper, result in zip(labels, printed, results, strict=True)
    ]
    return Table(f"{title}, seconds", COLUMNS, tuple(rows), digits=0)


def _ratios(
    title: str, printed: Sequence[Printed], labels: Sequence[str], results: Sequence[Result]
) -> Table:
    base = (*BASELINE.queue, *BASELINE.jct)
    rows = [
        Row(
            f"{label} ({paper.label})",
            tuple(
                Figure(theirs / theirs_base, (_over(getattr(result, name), getattr(results[0], name)),))
                for theirs, theirs_base, name in zip((*paper.queue, *paper.jct), base, FIGURES, strict=True)
            ),
        )
        for label, paper, result in zip(labels[1:], printed[1:], results[1:], strict=True)
    ]
    return Table(f"{title}, to the baseline", COLUMNS, tuple(rows))


def _over(value: float, base: float) -> float:
    return value / base if base else math.nan
