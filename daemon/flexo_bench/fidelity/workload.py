"""The jobs of the benchmark: drawn by a seed, once, for the lab and for the simulator alike."""

from __future__ import annotations

import itertools
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
"""Duration of a step of one worker alone: long enough that a busy machine matters little."""
SLOWER = 0.02
"""Share by which each further worker makes a step longer."""
EPOCH = 10
"""Mini-batches of one worker in an epoch. A job reports its progress after each epoch."""
BETWEEN_S = 12.0
"""Mean time between two submissions (exponential)."""
ELASTIC_SHARE = 0.65
ELASTIC_SIZES = ((1, 3), (1, 4), (2, 6))
"""Base and maximum of elastic jobs."""
ELASTIC_S = (90.0, 170.0)
"""Running time of elastic jobs on their base (uniform)."""
RIGID_GPUS = (1, 2, 4)
RIGID_S = (40.0, 80.0)
"""Running time of all other jobs (uniform)."""
USER = "root"
"""The user who submits all jobs."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job. It is elastic if `most` > `least`."""

    number: int
    at_s: float
    """Time of submission, in seconds since the first submission."""
    least: int
    most: int
    epochs: int
    """Epochs of an elastic job."""
    seconds: float
    """Running time of a job that is not elastic."""
    gpus_each: int = 1
    """GPUs of each worker."""
    fungible: bool = False
    """Whether it may start on a lent server."""
    slower_on_loan: int = 1
    """How many times as long it runs on a lent server."""
    ddp: bool = False
    """Whether it trains with DistributedDataParallel, and not with Horovod."""

    @property
    def elastic(self) -> bool:
        """True if the job can grow."""
        return self.most > self.least

    @property
    def limit_minutes(self) -> int:
        """The time limit that its user asks for: twice the running time, in whole minutes as Slurm counts."""
        seconds = self.epochs * EPOCH * step_s(self.least) / self.least if self.elastic else self.seconds
        return math.ceil(2 * seconds * (self.slower_on_loan if self.fungible else 1) / 60)


def step_s(workers: int) -> float:
    """Duration of a step with `workers` workers, in seconds."""
    return STEP_S * (1 + SLOWER * (workers - 1))


def draw(jobs: int, seed: int) -> tuple[Job, ...]:
    """Draw `jobs` jobs, in the order of submission. Every second elastic one trains with DDP."""
    random_of = random.Random(seed)
    drawn: list[Job] = []
    at_s, ddp = 0.0, itertools.cycle((False, True))
    for number in range(1, jobs + 1):
        if random_of.random() < ELASTIC_SHARE:
            least, most = random_of.choice(ELASTIC_SIZES)
            work = random_of.uniform(*ELASTIC_S) * least / step_s(least)
            epochs = max(1, round(work / EPOCH))
            drawn.append(Job(number, at_s, least, most, epochs, 0.0, ddp=next(ddp)))
        else:
            gpus = random_of.choice(RIGID_GPUS)
            drawn.append(Job(number, at_s, gpus, gpus, 0, round(random_of.uniform(*RIGID_S))))
        at_s += random_of.expovariate(1 / BETWEEN_S)
    return tuple(drawn)


def simulated(jobs: tuple[Job, ...], speed: TableSpeed) -> Workload:
    """The same jobs for the simulator. `speed`: elastic jobs' mini-batches of one worker per second."""
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
        shape=Resources(gpus=job.gpus_each, cpus=1),
        training=training,
        user=USER,
        time_limit_s=60 * job.limit_minutes,
        fungible=job.fungible,
    )
