"""Jobs like those of Lyra's trace, which is not public: every figure that its slides print is met.

Running times: a lognormal cut off at its longest, whose mean (13,538 s), median (736 s) and 95th percentile
(74,576 s) are what the slides' Baseline has of completion less queueing time. Sizes: 5% of the jobs are large
(16, 32 or 64 GPUs) and hold 36% of the GPU time, as their elastic jobs do; the sizes of the others are made
up so that a job takes 65,600 GPU seconds in the mean. Arrivals: Poisson, 140 jobs an hour in the mean, at a
rate that follows the day and has spells of many and of few jobs, for which nothing is printed: without spells
hardly a job would wait at 72% use. How much they differ is the one number that is chosen, such that the
Baseline queues about as long as theirs in the mean of ten seeds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, ndtri

from flexo.model.ranges import Range
from flexo_bench.loaning import published
from flexo_simulation.elasticity import drawn
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import in_order
from flexo_simulation.workload import TraceJob, Workload

DAY_S = 86_400.0
LOCATION, SPREAD, LONGEST_S = 6.6886, 3.0921, 394_292.0
"""Of the logarithm of running times; none is longer, which is 4.6 days."""
SMALL = {1: 0.42, 2: 0.20, 4: 0.16, 8: 0.22}
"""Of the jobs that are not large, those with so many GPUs."""
LARGE = {16: 0.4, 32: 0.3, 64: 0.3}
LARGE_SHARE = 0.05
SWING = 0.6
"""The rate of arrivals by day is so much above the mean, and at night so much below."""
SPELL_S = 6 * 3600.0
SPELLS = 1.5
"""Standard deviation of the logarithm of what the rate is multiplied with in each spell."""
BUSIEST_S = 14 * 3600.0
"""Of the day: when the inference cluster is busiest, too."""
TYPE = "V100"


def make(seed: int, scale: float) -> Workload:
    """All jobs of one seed, none of them elastic: `scale` of the published number, in as many days."""
    dice = np.random.Generator(np.random.PCG64(seed))
    count = round(published.JOBS * scale)
    large = dice.random(count) < LARGE_SHARE
    sizes = np.where(large, _pick(dice, LARGE, count), _pick(dice, SMALL, count))
    seconds = _running_times(dice, count)
    # no chance in the load: seeds differ in what comes when
    seconds *= published.GPU_S_A_JOB * count / float(sizes @ seconds)
    times = np.sort(_times(dice, count))
    jobs = (
        linear_job(
            submitted_at=float(at), gpus=int(gpus), duration_s=float(duration_s), line=line, gpu_type=TYPE
        )
        for line, (at, gpus, duration_s) in enumerate(zip(times, sizes, seconds, strict=True), start=1)
    )
    return Workload(f"{count} jobs like those of Lyra's trace (seed {seed})", in_order(jobs, begin=0.0))


def _pick(dice: np.random.Generator, shares: dict[int, float], count: int) -> np.ndarray:
    weights = np.array(list(shares.values()))
    picked: np.ndarray = dice.choice(list(shares), size=count, p=weights / weights.sum())
    return picked


def _running_times(dice: np.random.Generator, count: int) -> np.ndarray:
    below_longest = ndtr((math.log(LONGEST_S) - LOCATION) / SPREAD)
    times: np.ndarray = np.maximum(1.0, np.exp(LOCATION + SPREAD * ndtri(dice.random(count) * below_longest)))
    return times


def _times(dice: np.random.Generator, count: int) -> np.ndarray:
    """When jobs come."""
    minutes = np.arange(0.0, published.DAYS * DAY_S, 60.0)
    by_day = 1 + SWING * np.cos(2 * math.pi * (minutes - BUSIEST_S) / DAY_S)
    spells = np.exp(SPELLS * dice.standard_normal(math.ceil(published.DAYS * DAY_S / SPELL_S)))
    come = np.cumsum(by_day * spells[(minutes / SPELL_S).astype(int)])
    times: np.ndarray = np.interp(dice.random(count) * come[-1], come, minutes)
    return times


def adapted(
    raw: Workload, seed: int, *, elastic: float, fungible: float, heterogeneous: float, of_large: bool
) -> Workload:
    """`raw` with such shares of its jobs; elastic ones can have half to twice what they ask for."""

    def change(job: TraceJob) -> TraceJob:
        asked, number = job.requested_workers, job.job_id
        candidate = asked >= min(LARGE) if of_large else True
        if candidate and drawn(number, seed, "elastic") < elastic:
            job = replace(job, workers=Range(max(1, asked // 2), 2 * asked))
        return replace(
            job,
            fungible=drawn(number, seed, "fungible") < fungible,
            heterogeneous=drawn(number, seed, "heterogeneous") < heterogeneous,
        )

    return replace(raw, jobs=tuple(map(change, raw.jobs)))
