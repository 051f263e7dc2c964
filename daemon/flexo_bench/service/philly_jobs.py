"""The jobs of the Philly trace as jobs with parameter servers. What the trace does not tell is assumed here.

The trace tells when a job began, how long it ran and how many GPUs it had. AutoPS (section 5.2.3) replays
the same trace, but prints no model, no servers and no aggregation times of its jobs.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from flexo.aggregation.demand import AggregationTask, Capacity, JobDemand, piece_sizes
from flexo.aggregation.pool import SECOND
from flexo_simulation.alone import alone_s
from flexo_simulation.formats import philly
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.workload import Workload

AGGREGATOR: Final = Capacity(network=12_500_000_000, memory=256 * 10**9)
"""The paper's CPU machines have 100 Gb/s; their memory is not printed."""
GPUS_OF_WORKER: Final = 4
"""As on the paper's testbed, where a worker is one machine of 4 GPUs."""
TASKS_OF_SERVER: Final = 16
"""The fewest tasks of a dedicated server, so that each is small beside what an Aggregator can do."""


DAY_S: Final = 86_400.0
TEN_WEEKS: Final = (27 * DAY_S, 97 * DAY_S)
"""Seconds since the first job, of 4 September 2017. The paper replays 10 weeks. The study of this cluster
that it cites (Jeon et al., ATC 2019) begins in October 2017, so these are the 10 weeks from 1 October."""


@dataclass(frozen=True, slots=True)
class Model:
    """One of the four models that the paper trains."""

    name: str
    duration_s: float
    """Of one iteration; assumed. The paper says that AlexNet's are very short and VGG19's much longer."""
    use: Fraction
    """The part of the time in which each dedicated server of a job works."""
    size: int
    """Bytes of the parameters in single precision."""


MODELS: Final = (
    Model("AlexNet", 0.2, Fraction(50, 100), 244_000_000),
    Model("VGG19", 0.6, Fraction(16, 100), 575_000_000),
    Model("AWD-LM", 0.3, Fraction(33, 100), 134_000_000),
    Model("BERT", 0.9, Fraction(33, 100), 440_000_000),
)
"""VGG19's 16% is printed, with "more than a half" of the CPU unused in every job (figure 2). So AlexNet, the
busiest, has at most 50%, and the other two are given the middle."""
SERVER_USE: Final = sum((model.use for model in MODELS), Fraction(0)) / len(MODELS)
"""The mean use of a dedicated server that the simulation fixes: 33%, the middle of the printed bounds."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job of the trace with its demand. Times are in seconds since the first job of the trace."""

    begins: float
    ends: float
    demand: JobDemand
    servers: int
    """Dedicated servers that the job would reserve."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed of the trace's jobs."""

    server_use: Fraction = SERVER_USE
    """The mean over the models, which keep their proportions."""
    least_gpus: int = 8
    """Jobs with fewer GPUs have no servers: their workers are on one machine."""
    spread: float = 0.5
    """Durations of iterations of one model differ by factors from exp(-spread) to exp(spread)."""
    as_wide_as_servers: bool = True
    """Whether a job has as many Aggregators as it would have servers, or more; else as few as hold it."""


def load(traces: Path) -> Workload:
    """All jobs of the trace. Raises BadTrace."""
    return philly.read(traces / "philly" / "philly.csv", ReadOptions())


def with_servers(
    workload: Workload, assumed: Assumptions, seed: int, most: int | None = None
) -> tuple[TracedJob, ...]:
    """The first `most` jobs with several workers, in order of time; None: all. `seed` draws their models."""
    chance = random.Random(seed)
    found: list[TracedJob] = []
    for job in workload.jobs:
        if job.requested_workers < assumed.least_gpus:
            continue
        ends = job.submitted_at + alone_s(job.training, job.requested_workers)
        workers = max(2, -(-job.requested_workers // GPUS_OF_WORKER))
        model = chance.choice(MODELS)
        duration_s = model.duration_s * math.exp(chance.uniform(-assumed.spread, assumed.spread))
        use = min(Fraction(1), model.use * assumed.server_use / SERVER_USE)
        demand = demand_of(str(job.job_id), model, workers, use, duration_s)
        if not assumed.as_wide_as_servers:
            demand = replace(demand, servers=1)
        found.append(TracedJob(job.submitted_at, ends, demand, workers))
    return tuple(found[:most])


def demand_of(
    job: str, model: Model, servers: int, use: Fraction | None = None, duration_s: float | None = None
) -> JobDemand:
    """A job of a model with as many workers as servers ("2s-2w"), by default with the model's own figures.

    All its tasks are equal, and each server would have the same number of them.
    """
    duration_ns = round((model.duration_s if duration_s is None else duration_s) * SECOND)
    each = max(-(-len(piece_sizes(model.size)) // servers), TASKS_OF_SERVER)
    use = model.use if use is None else use
    size, execution_ns = model.size // (each * servers), int(use * duration_ns / each)
    tasks = tuple(AggregationTask(str(index), size, execution_ns) for index in range(each * servers))
    return JobDemand(job, duration_ns, servers, tasks, servers)
