"""Amoeba's figure 2a: how long GPUs are idle between jobs, on Microsoft's Philly trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.backfill import Backfill
from flexo_bench.papers.figures import Comparison, Figure, Row, Run, Table
from flexo_simulation.comparison import Trial
from flexo_simulation.course import course_of, stretches_of
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats import philly
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.idle_intervals import Hold, Interval, Order, intervals
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

PAPER = 'Wu et al., "Elastic deep learning in multi-tenant GPU cluster" (Amoeba), section 3.2 and figure 2a'
GPUS_OF_NODE = 8
CLUSTERS = (400, 512, 1248)
"""GPUs; in the last one hardly any job waits."""
PEAK = 0.9
"""The part of the GPUs in use above which an hour is a peak hour, as printed."""
MINUTES = (1, 4, 15, 60, 240)
SHORT = 4
"""The length in minutes below which the paper prints shares."""
PRINTED_INTERVALS, PRINTED_TIME = 39.62, 41.5
"""Percent of the intervals in peak hours, and of the idle resource, that are shorter than SHORT."""
DIFFERENCES = (
    "The paper reads real starts and GPUs from Philly's logs. The trace here has neither: backfilling is"
    " simulated, with running times known, and no GPU has a name.",
    "So there are two readings, the ends of what can have been: the GPU that was freed last is used first, or"
    " the one that was freed first. Real intervals are less unequal than the one, and more than the other.",
    "The cluster's size is not printed: 400 GPUs are a load of 0.94, 512 one of 0.73. With 1,248 nobody"
    " waits.",
    "A waiting job takes a GPU in the very instant in which it becomes idle, and that leaves no interval."
    " On a real cluster the start of a job takes seconds.",
    "An interval counts in peak hours if it begins in an hour in which more than 90% of the GPUs are in use.",
    "The paper's idle resource is the area under the frequency distribution of intervals. It is read as idle"
    " GPU time here.",
    "The trace has 82,247 jobs, theirs more than 100,000.",
)
COLUMNS = (
    "intervals",
    *(f"below {minutes} min, %" for minutes in MINUTES),
    f"idle time in those below {SHORT} min, %",
)


def compare(run: Run, traces: Path, most_jobs: int | None) -> Comparison:
    """Simulate Philly on each of CLUSTERS. `most_jobs`: only the first N jobs of the trace."""
    raw = philly.read(traces / "philly" / "philly.csv", ReadOptions())
    workload = Workload(raw.name, raw.jobs[:most_jobs])
    trials = [_trial(workload, gpus) for gpus in CLUSTERS]
    return Comparison("idle", PAPER, DIFFERENCES, tuple(_table(outcome) for outcome in run(trials)))


def _trial(workload: Workload, gpus: int) -> Trial:
    nodes = (NodeGroup(gpus // GPUS_OF_NODE, GPUS_OF_NODE),)
    return Trial(f"on {gpus} GPUs", Backfill(), workload, Scenario(nodes, estimates=Estimates(Mode.ORACLE)))


def _table(outcome: SimulatedRun) -> Table:
    """The figures from the first end of a job to the last submission."""
    gpus = int(outcome.gpus)
    begin = min(record.ended_at for record in outcome.records if record.ended_at is not None)
    span = begin, max(record.job.submitted_at for record in outcome.records)
    hours = max(1, math.ceil((span[1] - begin) / 3600))
    used = course_of(outcome.records, hours, span).used
    width_s = (span[1] - begin) / hours
    rows, holds = [], list(_holds(outcome))
    for order in Order:
        found = list(intervals(holds, gpus, span, order))
        peak = [each for each in found if used[_hour(each, begin, width_s, hours)] > PEAK * gpus]
        rows.append(Row(f"peak hours: {order.value}", _figures(peak, PRINTED_INTERVALS, PRINTED_TIME)))
        rows.append(Row(f"all hours: {order.value}", _figures(found, math.nan, math.nan)))
    peaks = sum(1 for each in used if each > PEAK * gpus) / hours
    return Table(f"{gpus} GPUs; {peaks:.0%} of the hours are peak hours", COLUMNS, tuple(rows))


def _hour(interval: Interval, begin: float, width_s: float, hours: int) -> int:
    return min(hours - 1, int((interval.begin - begin) / width_s))


def _holds(outcome: SimulatedRun) -> Iterator[Hold]:
    for record in outcome.records:
        for each in stretches_of(record, outcome.result.makespan_s):
            if each.workers:
                yield Hold(each.begin, each.end, each.workers)


def _figures(found: Sequence[Interval], printed: float, printed_time: float) -> tuple[Figure, ...]:
    """The figures under COLUMNS; an interval that the end of the trace cuts off counts with what is seen."""
    number = sum(each.gpus for each in found)
    shares = (_percent([e.gpus for e in found if e.length_s < 60 * m], number) for m in MINUTES)
    time = sum(each.length_s * each.gpus for each in found)
    short = [each.length_s * each.gpus for each in found if each.length_s < 60 * SHORT]
    return (
        Figure(math.nan, (float(number),)),
        *(
            Figure(printed if minutes == SHORT else math.nan, (share,))
            for minutes, share in zip(MINUTES, shares, strict=True)
        ),
        Figure(printed_time, (_percent(short, time),)),
    )


def _percent(parts: Sequence[float], whole: float) -> float:
    return 100 * sum(parts) / whole if whole else math.nan
