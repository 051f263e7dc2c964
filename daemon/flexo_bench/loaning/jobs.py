"""Jobs like those of Lyra's trace, which is not public: every figure that its slides print is met.

Running times: a lognormal cut off at its longest. Its mean (13,538 s), median (736 s) and 95th percentile
(74,576 s) are those of the slides' Baseline, completion less queueing time. Sizes: 5% of the jobs are large
(16, 32 or 64 GPUs) and hold 36% of the GPU time, as their elastic jobs do. The sizes of the others are made
up so that the mean of a job is 65,600 GPU seconds. Arrivals: Poisson, 140 jobs an hour on average. The rate
follows the day and has spells of many and of few jobs, for which no figure is printed. Without spells hardly
a job would wait at 72% use. The only free number is how much the spells differ. It is chosen so that the
Baseline queues about as long as that of the slides, as the mean of ten seeds.
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
"""Mean and standard deviation of the logarithm of running times, and the longest running time (4.6 days)."""
SMALL = {1: 0.42, 2: 0.20, 4: 0.16, 8: 0.22}
"""Per number of GPUs: share of the jobs that are not large."""
LARGE = {16: 0.4, 32: 0.3, 64: 0.3}
LARGE_SHARE = 0.05
SWING = 0.6
"""Share by which the rate of arrivals is above the mean by day, and below it at night."""
SPELL_S = 6 * 3600.0
SPELLS = 1.5
"""Standard deviation of the logarithm of the factor by which each spell multiplies the rate."""
BUSIEST_S = 14 * 3600.0
"""Time of day of the highest rate, at which the inference cluster is busiest, too."""
TYPE = "V100"


def make(seed: int, scale: float) -> Workload:
    """All jobs of one seed, none of them elastic: `scale` of the published number, in as many days."""
    dice = np.random.Generator(np.random.PCG64(seed))
    count = round(published.JOBS * scale)
    large = dice.random(count) < LARGE_SHARE
    sizes = np.where(large, _pick(dice, LARGE, count), _pick(dice, SMALL, count))
    seconds = _running_times(dice, count)
    # every seed has the same load: seeds differ in which job comes when
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
    """Draw submission times, in seconds."""
    minutes = np.arange(0.0, published.DAYS * DAY_S, 60.0)
    by_day = 1 + SWING * np.cos(2 * math.pi * (minutes - BUSIEST_S) / DAY_S)
    spells = np.exp(SPELLS * dice.standard_normal(math.ceil(published.DAYS * DAY_S / SPELL_S)))
    come = np.cumsum(by_day * spells[(minutes / SPELL_S).astype(int)])
    times: np.ndarray = np.interp(dice.random(count) * come[-1], come, minutes)
    return times


def adapted(
    raw: Workload, seed: int, *, elastic: float, fungible: float, heterogeneous: float, of_large: bool
) -> Workload:
    """`raw` with these shares of elastic, fungible and heterogeneous jobs.

    An elastic job can have half to twice the workers that it asks for.
    """

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
