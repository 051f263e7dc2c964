"""Pollux' published rows beside every policy of ours, on the five workloads that its authors share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies import registry
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table
from flexo_simulation.comparison import Trial
from flexo_simulation.costs import POLLUX
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats import pollux
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.results import Result
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

PAPER = (
    'Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI 2021)'
)
WORKLOADS = (1, 2, 3, 4, 6)
PUBLISHED = {
    "Pollux": (2088.77, 3322.94, 2188.49, 2720.98, 2446.13),
    "Tiresias, tuned jobs": (2473.65, 5144.96, 3876.26, 3280.26, 3469.69),
    "Optimus and an oracle": (4087.06, 6913.88, 3944.01, 5967.75, 5301.88),
}
"""Mean completion times in seconds, by workload, of the artifact's own results."""
REPLAYED = "tiresias-pollux"
JOBS_CHOOSE = frozenset({"goodput", "throughput", "max-batch", "min-batch", "random-batch"})
"""Policies under which the batch is not the choice of a job's user."""
DIFFERENCES = (
    "Setting as published: 16 nodes of 4 GPUs, a decision each 60 s, 30 s lost at every start and change.",
    "The published means are of 160 jobs of each workload; of the eight published workloads five are shared.",
    "Only the row tiresias-pollux is a replay of a published one, to the second. The others are ours, under"
    " the same setting: what a job's speed is they know from what it has run so far.",
    "Under goodput a job chooses its batch from its fitted model, as under Pollux; under throughput,"
    " max-batch, min-batch and random-batch the policy chooses it; else it is what the job's user chose"
    " (tuned jobs).",
    "Jobs declare their epochs, but for the row without. Rows marked with an asterisk go by more: the true"
    " running times (an oracle).",
    "Pollux lets a job have at most twice the GPUs that it has run on; of ours only goodput has such a"
    " limit.",
)


def compare(run: Run, traces: Path) -> Comparison:
    """Simulate every policy on every workload."""
    workloads = [
        pollux.read(traces / "pollux" / "workloads" / f"workload-{number}.csv", ReadOptions())
        for number in WORKLOADS
    ]
    names = registry.built_in("starts_jobs")
    cases = [(name, True) for name in names] + [("goodput", False)]
    outcomes = run([_trial(name, jobs, declare) for name, declare in cases for jobs in workloads])
    results = [outcome.result for outcome in outcomes]
    count = len(WORKLOADS)
    by_case = {
        _label(name, declare): results[index * count : (index + 1) * count]
        for index, (name, declare) in enumerate(cases)
    }
    return Comparison("pollux", PAPER, DIFFERENCES, (_means(by_case), _tails(by_case)))


def _trial(name: str, workload: Workload, declare: bool) -> Trial:
    policy = registry.make(name)
    jobs = pollux.adapted(workload, choose_batch=name in JOBS_CHOOSE, declare=declare)
    estimates = Estimates(Mode.ORACLE if policy.oracle else Mode.HISTORY)
    scenario = Scenario((NodeGroup(16, 4),), POLLUX, interval_s=60.0, estimates=estimates)
    return Trial(name, policy, jobs, scenario)


def _label(name: str, declare: bool) -> str:
    oracle = "*" if registry.make(name).oracle else ""
    return f"{name}{oracle}" if declare else f"{name}, epochs not declared"


def _means(by_case: Mapping[str, Sequence[Result]]) -> Table:
    """The table of mean completion times. Only the replayed row has published figures and ours."""
    rows = [Row(label, _published(means)) for label, means in PUBLISHED.items()]
    pollux_mean = sum(PUBLISHED["Pollux"]) / len(WORKLOADS)
    for label, results in by_case.items():
        ours = [result.avg_jct_s for result in results]
        theirs = PUBLISHED["Tiresias, tuned jobs"] if label == REPLAYED else (math.nan,) * len(ours)
        mean = sum(ours) / len(ours)
        figures = [Figure(paper, (value,)) for paper, value in zip(theirs, ours, strict=True)]
        paper_mean = sum(theirs) / len(theirs)
        rows.append(
            Row(
                label,
                (
                    *figures,
                    Figure(paper_mean, (mean,)),
                    Figure(paper_mean / pollux_mean, (mean / pollux_mean,)),
                ),
            )
        )
    columns = (*(f"workload {number}" for number in WORKLOADS), "mean", "to Pollux' mean")
    return Table("mean completion time, seconds", columns, tuple(rows))


def _published(means: Sequence[float]) -> tuple[Figure, ...]:
    mean = sum(means) / len(means)
    pollux_mean = sum(PUBLISHED["Pollux"]) / len(WORKLOADS)
    return tuple(Figure(value, ()) for value in (*means, mean, mean / pollux_mean))


def _tails(by_case: Mapping[str, Sequence[Result]]) -> Table:
    """The table of tails and queueing, of ours alone: the paper prints no such figures by workload."""
    rows = [
        Row(
            label,
            tuple(
                Figure(math.nan, tuple(getattr(result, name) for result in results))
                for name in ("p99_jct_s", "max_jct_s", "avg_queue_s")
            ),
        )
        for label, results in by_case.items()
    ]
    return Table(
        "over the five workloads, seconds", ("p99", "maximum", "mean queueing"), tuple(rows), digits=0
    )
