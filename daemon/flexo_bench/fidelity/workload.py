"""The jobs of the benchmark: drawn by a seed, once, for the lab and for the simulator alike."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from flexo.model.measured import Source
from flexo.model.ranges import Range
from flexo.scalability.table import TableSpeed
from flexo_protos.resources import Resources
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.workload import TraceJob, Workload

STEP_S = 0.4
"""Of one worker alone: long enough that a busy machine matters little."""
SLOWER = 0.02
"""Each more worker makes a step so much longer."""
EPOCH = 10
"""Mini-batches of one worker in an epoch; after each a job tells how far it is."""
BETWEEN_S = 12.0
"""Mean time between two submissions (exponential)."""
ELASTIC_SHARE = 0.65
ELASTIC_SIZES = ((1, 3), (1, 4), (2, 6))
"""Base and maximum of elastic jobs."""
ELASTIC_S = (90.0, 170.0)
"""How long they take on their base (uniform)."""
RIGID_GPUS = (1, 2, 4)
RIGID_S = (40.0, 80.0)
"""How long the others take (uniform)."""
USER = "root"
"""Who submits all of them."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `most` > `least`: elastic."""

    number: int
    at_s: float
    """Submitted, since the first submission."""
    least: int
    most: int
    epochs: int
    """Of an elastic job."""
    seconds: float
    """Of one that is not."""

    @property
    def elastic(self) -> bool:
        """Whether it can grow."""
        return self.most > self.least

    @property
    def limit_minutes(self) -> int:
        """The time limit that its user asks for: twice what it takes, in whole minutes, as Slurm counts."""
        seconds = self.epochs * EPOCH * step_s(self.least) / self.least if self.elastic else self.seconds
        return math.ceil(2 * seconds / 60)


def step_s(workers: int) -> float:
    """How long a step sleeps."""
    return STEP_S * (1 + SLOWER * (workers - 1))


def draw(jobs: int, seed: int) -> tuple[Job, ...]:
    """So many jobs, in the order of submission."""
    random_of = random.Random(seed)
    drawn, at_s = [], 0.0
    for number in range(1, jobs + 1):
        if random_of.random() < ELASTIC_SHARE:
            least, most = random_of.choice(ELASTIC_SIZES)
            work = random_of.uniform(*ELASTIC_S) * least / step_s(least)
            drawn.append(Job(number, at_s, least, most, max(1, round(work / EPOCH)), 0.0))
        else:
            gpus = random_of.choice(RIGID_GPUS)
            drawn.append(Job(number, at_s, gpus, gpus, 0, round(random_of.uniform(*RIGID_S))))
        at_s += random_of.expovariate(1 / BETWEEN_S)
    return tuple(drawn)


def simulated(jobs: tuple[Job, ...], speed: TableSpeed) -> Workload:
    """The same jobs for the simulator; `speed` is of elastic ones, in mini-batches of one worker a second."""
    return Workload("fidelity", tuple(_trace_job(job, speed) for job in jobs))


def _trace_job(job: Job, speed: TableSpeed) -> TraceJob:
    training = (
        LinearTraining(float(job.epochs * EPOCH), speed, Source.PROGRESS)
        if job.elastic
        else LinearTraining(job.seconds * job.least)
    )
    return TraceJob(
        job_id=job.number,
        submitted_at=job.at_s,
        workers=Range(job.least, job.most),
        requested_workers=job.least,
        shape=Resources(gpus=1, cpus=1),
        training=training,
        user=USER,
        time_limit_s=60 * job.limit_minutes,
    )
