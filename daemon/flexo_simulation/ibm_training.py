"""The jobs of IBM's evaluation: their true speeds, and their arrivals (Saxena et al., section IV).

The paper prints four categories, their weights, batches and lengths on one GPU (table I, section IV-G); the
scaling factors of category 1 on two GPUs (table II); that a job of category 1 on 5 GPUs with a batch of 160
ends 1.6 times sooner than on 2 with 32 (IV-D). The paper does not print the following, which is assumed here
(docs/evidence/papers-ibm.md says why, and how it affects the results):

- step times: t_proc(b) = b + 6.38 samples' worth for every category. With an all-reduce of 24M weights on two
  GPUs of 7.68 in the same unit, that gives table II within 2%;
- all-reduces beyond two GPUs, which leave the machine: a ring, 2 (k-1)/k of what the 1.6 implies for 5 GPUs,
  in proportion to the weights. As in the paper's simulator, the nodes of a job's GPUs do not matter;
- the largest batch of one GPU: 32 for category 1 (table II ends there, and 160 samples are on 5 GPUs), an
  eighth of its largest batch; an eighth, too, for categories 2 and 3; category 4 has one batch only, which
  fits one GPU, since its length there is printed;
- rates of arrival: "high" is k_max times the base rate, with k_max read as the GPUs of the cluster, and "low"
  a quarter of it; "very high" and "very low" are taken to mean the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from flexo.model.measured import Source
from flexo.model.ranges import Range
from flexo.scalability.jsa import AllReduceTimes, JobScalability, ProcessingTimes
from flexo_protos.resources import Resources
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.workload import TraceJob, Workload

SAMPLE_S: Final = 0.01
"""Seconds that a GPU takes for one more sample: the unit of all step times. Lengths are printed in minutes,
so that this value cancels out of every result."""
STEP_OVERHEAD: Final = 6.38
"""The time of a step besides its samples, in samples (fitted to table II)."""
PAIR_24M: Final = 7.68
"""The time of an all-reduce of 24M weights by two GPUs, in samples (fitted to table II)."""
FIVE_24M: Final = 53.9
"""The time of an all-reduce of 24M weights by five GPUs, in samples (from the 1.6 of section IV-D)."""

_TRIALS: Final = 5
"""Number of batches with which a job is tried out when it arrives."""


@dataclass(frozen=True, slots=True)
class Category:
    """One kind of job. All are equally frequent."""

    number: int
    model: str
    weights: float
    batch: Range
    """Batches of the whole job."""
    minutes: float
    """Minutes on one GPU, with the largest batch that fits it."""
    largest_per_gpu: int
    """The most samples that fit on one GPU."""


CATEGORIES: Final = (
    Category(1, "resnet50-cifar100", 24e6, Range(32, 256), 16, 32),
    Category(2, "alexnet-cifar100", 58e6, Range(16, 256), 21, 32),
    Category(3, "vgg11_bn-cifar100", 10e6, Range(16, 1024), 41, 128),
    Category(4, "alexnet-food101", 58e6, Range(128, 128), 27, 128),
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Poisson arrivals whose rate alternates, high first."""

    minutes: float
    """Minutes for which jobs arrive."""
    high: float = 1.0
    """The high rate, as a part of the rate at which all GPUs complete jobs, one job on each GPU
    (`base_rate`)."""
    low: float = 0.25
    phase_minutes: float = 120.0
    categories: tuple[Category, ...] = CATEGORIES
    """The categories of jobs, which are equally probable."""

    @property
    def base_rate(self) -> float:
        """lambda: jobs that one GPU completes in a minute (section IV-A)."""
        return len(self.categories) / sum(category.minutes for category in self.categories)

    def draw(self, gpus: int, seed: int) -> Iterator[tuple[float, Category]]:
        """The minute and the category of each job, for a cluster of `gpus` GPUs."""
        drawn = random.Random(f"{seed} IBM")
        starts, rates = 0.0, cycle((self.high, self.low))
        while starts < self.minutes:
            ends, rate = min(starts + self.phase_minutes, self.minutes), next(rates) * self.base_rate * gpus
            at = starts + drawn.expovariate(rate)
            while at < ends:
                yield at, drawn.choice(self.categories)
                at += drawn.expovariate(rate)
            starts = ends


def step_s(samples: int) -> float:
    """The true t_proc: seconds of a step with this number of samples on one GPU."""
    return (samples + STEP_OVERHEAD) * SAMPLE_S


def all_reduce_s(weights: float, gpus: int) -> float:
    """The true t_comm: seconds of an all-reduce."""
    if gpus < 2:
        return 0.0
    ring = PAIR_24M if gpus == 2 else FIVE_24M / (2 * 4 / 5) * 2 * (gpus - 1) / gpus
    return ring * weights / 24e6 * SAMPLE_S


def analyze(category: Category, all_reduce: AllReduceTimes) -> JobScalability:
    """The analyzer's result for a job of this category."""
    processing = ProcessingTimes.try_out(step_s, 1, category.largest_per_gpu, _TRIALS)
    return JobScalability(processing, all_reduce, category.weights, category.batch, category.largest_per_gpu)


def generate(arrivals: Arrivals, gpus: int, seed: int, k_max: int | None = None) -> Workload:
    """Make the workload of a cluster of `gpus` GPUs. `k_max`: the most GPUs of one job; None: all.

    A job does the same work with any batch: a number of samples. Its run time is the analyzer's estimate, as
    in the paper's simulator (section III-E).
    """
    most = min(gpus, k_max or gpus)
    all_reduce = AllReduceTimes.calibrate(all_reduce_s, range(2, gpus + 1))
    speeds = {category: analyze(category, all_reduce) for category in arrivals.categories}
    jobs = tuple(
        _job(number, minutes * 60, category, speeds[category], most)
        for number, (minutes, category) in enumerate(arrivals.draw(gpus, seed), 1)
    )
    return Workload(f"IBM, {gpus} GPUs, {arrivals.minutes:.0f} min, seed {seed}", jobs)


def _job(number: int, at: float, category: Category, speed: JobScalability, most: int) -> TraceJob:
    work = category.minutes * 60 * speed.rate(1, 1, category.largest_per_gpu)
    return TraceJob(
        job_id=number,
        submitted_at=at,
        workers=Range(1, min(most, category.batch.max)),
        requested_workers=1,
        shape=Resources(gpus=1, cpus=1),
        training=LinearTraining(work, speed, Source.PROGRESS),
        application=category.model,
        batch=category.batch,
        declared_work=work,
    )
