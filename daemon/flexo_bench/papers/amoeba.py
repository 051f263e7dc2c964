"""Amoeba's table 2: Elastic-Tiresias beside Tiresias on Microsoft's Philly trace, by size class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.elastic_tiresias import ElasticTiresias
from flexo.policies.tiresias import Tiresias
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table
from flexo_simulation.alone import alone_s
from flexo_simulation.comparison import Trial
from flexo_simulation.costs import MEASURED
from flexo_simulation.elasticity import Elasticity, Of, made_elastic
from flexo_simulation.formats import philly
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.speeds import with_tables
from flexo_simulation.table_training import load_tables
from flexo_simulation.workload import Workload

PAPER = 'Wu et al., "Elastic deep learning in multi-tenant GPU cluster" (Amoeba), table 2'
GPUS_OF_NODE = 8
CLUSTERS = (400, 512)
MOST_WORKERS = 64
"""The largest size that the tables of speeds have."""
DIFFERENCES = (
    "Their trace has more than 100,000 jobs, ours (the public part, as parsed for Pollux) 82,247, of which"
    " 94.3% (theirs 89.4%) take less than 50,000 GPU s.",
    "The cluster's size is not printed: 400 GPUs are a load of 0.94, 512 one of 0.73; nodes of 8.",
    f"Every job is elastic, from 1 to {MOST_WORKERS} GPUs (or what its user asked for, if that is more)."
    " Each is given one of ElasticFlow's measured speeds at random; theirs are TensorFlow's benchmark"
    " models, not printed.",
    "N of rule R1 is not printed: 0, so that R1 acts as soon as anybody waits. The starvation knob is not"
    " printed: 8.",
    f"Both pay {MEASURED.start_s:g} s for a start and {MEASURED.resize_s:g} s for a resize, as measured"
    " with flexo; theirs is not printed.",
    "Their table contradicts itself: no mixture of its three classes gives both of its means. With its class"
    " rows the mean of all falls by 24.8% at most.",
)


@dataclass(frozen=True)
class Class:
    """Jobs by GPU seconds, and their printed mean completion times in seconds."""

    label: str
    above: float
    below: float
    tiresias: float
    elastic: float


CLASSES = (
    Class("all", 0.0, math.inf, 52_055, 36_544),
    Class("below 10,000 GPU s", 0.0, 1e4, 1_646, 878),
    Class("10,000 to 200,000 GPU s", 1e4, 2e5, 33_669, 36_426),
    Class("above 200,000 GPU s", 2e5, math.inf, 726_367, 550_543),
)
POLICIES = (Tiresias(), ElasticTiresias())
LARGEST = f"{MOST_WORKERS} GPUs"
MOST = {
    "what was asked for": Elasticity(share=1.0, of=Of.ALL, min_workers=1, max_factor=1.0),
    "twice what was asked for": Elasticity(share=1.0, of=Of.ALL, min_workers=1, max_factor=2.0),
    LARGEST: Elasticity(share=1.0, of=Of.ALL, min_workers=1, max_workers=MOST_WORKERS),
}
"""Assumptions on the most GPUs that R2 gives a job, which the paper does not print."""
SEED = 1
COLUMNS = ("Tiresias, s", "Elastic-Tiresias, s", "elastic to Tiresias")


def compare(run: Run, traces: Path, most_jobs: int | None) -> Comparison:
    """Simulate both policies on both clusters. `most_jobs`: only the first N jobs of the trace."""
    raw = philly.read(traces / "philly" / "philly.csv", ReadOptions())
    raw = Workload(raw.name, raw.jobs[:most_jobs])
    gpu_s = {
        job.job_id: job.requested_workers * alone_s(job.training, job.requested_workers) for job in raw.jobs
    }
    tables = load_tables(traces / "elasticflow" / "a100")
    by_most = {
        label: with_tables(made_elastic(raw, wish, SEED), tables, "", SEED) for label, wish in MOST.items()
    }
    trials = [_trial(policy, by_most[LARGEST], gpus) for gpus in CLUSTERS for policy in POLICIES]
    trials += [
        _trial(ElasticTiresias(), jobs, CLUSTERS[-1]) for label, jobs in by_most.items() if label != LARGEST
    ]
    outcomes = run(trials)
    pairs = zip(CLUSTERS, outcomes[:4:2], outcomes[1:4:2], strict=True)
    return Comparison(
        "amoeba",
        PAPER,
        DIFFERENCES,
        (
            *(_table(gpus, gpu_s, plain, elastic) for gpus, plain, elastic in pairs),
            _by_most(gpu_s, outcomes[2], (*outcomes[4:], outcomes[3])),
        ),
    )


def _trial(policy: Tiresias, workload: Workload, gpus: int) -> Trial:
    nodes = (NodeGroup(gpus // GPUS_OF_NODE, GPUS_OF_NODE),)
    return Trial(f"{policy.name} on {gpus} GPUs", policy, workload, Scenario(nodes, MEASURED))


def _table(gpus: int, gpu_s: Mapping[int, float], plain: SimulatedRun, elastic: SimulatedRun) -> Table:
    rows = []
    for each in CLASSES:
        before, after = (_mean_jct_s(outcome, each, gpu_s) for outcome in (plain, elastic))
        figures = (
            Figure(each.tiresias, (before,)),
            Figure(each.elastic, (after,)),
            Figure(each.elastic / each.tiresias, (after / before,)),
        )
        rows.append(Row(each.label, figures))
    share = sum(1 for size in gpu_s.values() if size < CLASSES[1].below) / len(gpu_s)
    title = f"mean completion times on {gpus} GPUs, {len(gpu_s)} jobs, {share:.1%} of them below 10,000 GPU s"
    return Table(title, COLUMNS, tuple(rows))


def _by_most(gpu_s: Mapping[int, float], plain: SimulatedRun, elastic: Sequence[SimulatedRun]) -> Table:
    """The table of ratios, one row for each assumption in MOST."""
    rows = []
    for label, outcome in zip(MOST, elastic, strict=True):
        ratios = [_mean_jct_s(outcome, each, gpu_s) / _mean_jct_s(plain, each, gpu_s) for each in CLASSES]
        printed = [each.elastic / each.tiresias for each in CLASSES]
        rows.append(Row(label, tuple(Figure(p, (r,)) for p, r in zip(printed, ratios, strict=True))))
    title = f"elastic to Tiresias on {CLUSTERS[-1]} GPUs, by the most GPUs that R2 gives a job"
    return Table(title, tuple(each.label for each in CLASSES), tuple(rows))


def _mean_jct_s(outcome: SimulatedRun, each: Class, gpu_s: Mapping[int, float]) -> float:
    found = [
        record.jct_s
        for record in outcome.records
        if record.jct_s is not None and each.above <= gpu_s[record.job.job_id] < each.below
    ]
    return sum(found) / len(found) if found else math.nan
