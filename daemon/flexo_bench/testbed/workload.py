"""The jobs and the inference demand of the testbed: drawn by a seed, for the lab and for the simulator alike.

Lyra's slides print 180 jobs in eight hours, 10 of them elastic, on 32 V100 and 32 T4, and how long jobs
queue and take. What they do not print is chosen here, and said beside each constant.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from flexo.loaning.diurnal import Diurnal
from flexo_bench.fidelity.workload import EPOCH, Job, step_s
from flexo_bench.loaning import published
from flexo_bench.testbed.printed import BASELINE, ELASTIC_JOBS, FUNGIBLE_SHARE, JOBS, SECONDS

SMALL = ((1, 0.6), (2, 0.22), (4, 0.15), (8, 0.03))
"""Pairs (GPUs, share) of the jobs that are not elastic. They are not printed. These are chosen so that the
Baseline queues about as long as printed, in the simulator and over ten seeds."""
LONGEST_S = 3 * 3600.0
"""Running times above this are drawn again, so that a run ends: on T4, such a job takes nine hours."""
ELASTIC = 0
"""Stands for an elastic job among numbers of GPUs."""
ASKED, ELASTIC_GPUS = 2, 4
"""Workers that an elastic job asks for, and GPUs of each: 8 GPUs, as the largest of the others. As in the
benchmark of loaning, it can have half to twice the workers that it asks for."""
SLOWER_ON_LOAN = 3
"""How many times as long a job runs on T4 as on as many V100 (slides: T4 = 1/3 V100)."""
SAMPLES = 96
"""How often the inference demand is looked at in its day."""
SERVERS, GPUS_EACH = 8, 4
"""Inference servers, and T4 in each."""


@dataclass(frozen=True, slots=True)
class Need:
    """The servers that inference needs from `at` on, until the next. `at`: seconds since the beginning."""

    at: float
    servers: int


def draw(seed: int, seconds: float, jobs: int = JOBS) -> tuple[Job, ...]:
    """Draw the jobs of scheme Basic, in the order of submission. `seconds`: how long eight hours are.

    Running times are lognormal. Their mean and median are those of the printed Baseline, completion less
    queueing. Submissions are uniform over the time.
    """
    dice, scale = random.Random(seed), seconds / SECONDS
    elastic = max(1, round(ELASTIC_JOBS * jobs / JOBS))
    sizes = [*_sizes(jobs - elastic), *([ELASTIC] * elastic)]
    dice.shuffle(sizes)
    fungible = set(dice.sample(range(jobs), round(FUNGIBLE_SHARE * jobs)))
    times = sorted(dice.uniform(0.0, seconds) for _ in range(jobs))
    runs = _running_times(dice, jobs)
    drawn = (
        _job(number, at - times[0], gpus, run_s * scale, number in fungible)
        for number, (at, gpus, run_s) in enumerate(zip(times, sizes, runs, strict=True))
    )
    return tuple(replace(job, number=job.number + 1) for job in drawn)


def _sizes(jobs: int) -> Iterator[int]:
    """GPUs of the jobs that are not large, in exact shares."""
    begin, share_so_far = 0, 0.0
    for gpus, share in SMALL:
        share_so_far += share
        end = round(jobs * share_so_far)
        yield from [gpus] * (end - begin)
        begin = end


def _running_times(dice: random.Random, jobs: int) -> list[float]:
    mean_s = BASELINE.jct.mean - BASELINE.queue.mean
    median_s = BASELINE.jct.median - BASELINE.queue.median
    spread = math.sqrt(2 * math.log(mean_s / median_s))
    drawn: list[float] = []
    while len(drawn) < jobs:
        run_s = median_s * math.exp(spread * dice.gauss(0.0, 1.0))
        if run_s <= LONGEST_S:
            drawn.append(run_s)
    # all seeds have the same sum: they differ in which job is long
    return [run_s * mean_s * jobs / sum(drawn) for run_s in drawn]


def _job(number: int, at_s: float, gpus: int, run_s: float, fungible: bool) -> Job:
    """A job whose running time on what it asks for is `run_s`, but no less than a second."""
    if gpus != ELASTIC:
        whole = max(1, round(run_s))
        return Job(number, at_s, gpus, gpus, 0, whole, 1, fungible, SLOWER_ON_LOAN)
    work = run_s * ASKED / step_s(ASKED)
    least, most = ASKED // 2, 2 * ASKED
    epochs = max(1, round(work / EPOCH))
    return Job(number, at_s, least, most, epochs, 0.0, ELASTIC_GPUS, fungible, SLOWER_ON_LOAN)


def as_drawn(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """The same jobs for scheme Basic."""
    return jobs


def rigid(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """The same jobs for scheme Baseline: nothing is elastic or fungible; the work of each is the same."""
    return tuple(_rigid(job) for job in jobs)


def _rigid(job: Job) -> Job:
    if not job.elastic:
        return replace(job, fungible=False)
    run_s = job.epochs * EPOCH * step_s(ASKED) / ASKED
    return replace(job, least=ASKED, most=ASKED, epochs=0, seconds=max(1, round(run_s)), fungible=False)


def needs(seed: int, seconds: float) -> tuple[Need, ...]:
    """The inference demand: a day, pressed into the eight hours, and two more days for jobs that end late.

    It begins at midnight. The mean use is that of Lyra's inference cluster.
    """
    day = Diurnal(servers=SERVERS, mean_use=published.INFERENCE_USE, weekend=1.0, day_s=seconds)
    times = np.arange(0.0, 3 * seconds, seconds / SAMPLES)
    levels = [round(float(level)) for level in day.servers_at(times, seed)]
    steps = groupby(zip(times, levels, strict=True), key=lambda step: step[1])
    return tuple(Need(float(next(same)[0]), servers) for servers, same in steps)
