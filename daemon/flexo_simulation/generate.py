"""Synthetic workloads, drawn by a seed: the arrivals of jobs, their GPUs and their durations.

Sizes, durations and tenants are those of the Philly trace (82,247 jobs, 109 days; Jeon et al., ATC 2019;
msr-fiddle/philly-traces, CC-BY-4.0, as parsed in petuum/adaptdl). Arrivals are a Poisson process, steady or,
as in IBM's paper (Saxena et al., section IV-A), alternating between a high rate and a quarter of it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import in_order
from flexo_simulation.lognormals import Lognormals, Numbers
from flexo_simulation.workload import Workload

LONGEST_S: Final = 4_628_226.0
"""The duration of the longest of Philly's jobs; no generated job is longer."""
SIZES: Final = {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}
"""Per number of GPUs: how many of Philly's jobs had it."""
DURATIONS: Final = {
    1: Lognormals((0.189, 0.188, 0.603, 0.020), (4.168, 7.666, 7.059, 11.627), (0.175, 0.462, 1.758, 1.155)),
    2: Lognormals((0.644, 0.184, 0.172), (2.894, 3.780, 11.396), (0.344, 1.453, 1.241)),
    4: Lognormals((0.280, 0.551, 0.169), (5.331, 10.238, 11.673), (1.133, 1.667, 0.425)),
    8: Lognormals((0.319, 0.249, 0.432), (6.222, 9.631, 12.198), (1.577, 0.783, 0.819)),
    12: Lognormals((0.477, 0.040, 0.484), (6.474, 5.811, 11.633), (2.508, 0.149, 0.976)),
}
"""Durations of jobs with this number of GPUs, up to the next entry, in seconds: `lognormals.fit` of Philly's
jobs.

The parts began at the quantiles of FIT_STARTS. One lognormal does not suffice: with 4 GPUs its mean is more
than five times the real one. The largest distance of the distributions (Kolmogorov-Smirnov) is 0.021 for one
GPU and 0.027 to 0.040 for the others. Means differ by at most 5% (a test fits and compares)."""
FIT_STARTS: Final = {
    1: (0.1, 0.5, 0.9, 0.999),
    **dict.fromkeys((2, 4, 8, 12), (1 / 6, 1 / 2, 5 / 6)),
}
TENANTS: Final = (41226, 16091, 9953, 7423, 1934, 1511, 1435, 1137, 723, 422, 374, 8, 4, 3, 3)
"""Number of jobs of each of Philly's virtual clusters."""
_LOW: Final = 0.25
"""The low rate of bursty arrivals, in high rates (IBM, section IV-A)."""


class Arrivals(enum.Enum):
    """The process by which jobs arrive."""

    POISSON = "poisson"
    """Jobs arrive independently of each other, always at the same rate."""
    BURSTY = "bursty"
    """Jobs arrive independently of each other, at a high rate and a quarter of it by turns."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a synthetic workload."""

    jobs: int
    gpus: int
    """GPUs of the cluster: no job asks for more, and `load` is a part of them."""
    seed: int = 0
    arrivals: Arrivals = Arrivals.POISSON
    jobs_per_hour: float | None = None
    """Mean number of jobs per hour; None: the GPU seconds of all jobs are `load` of the cluster's
    meanwhile."""
    load: float = 0.8
    longest_s: float = LONGEST_S
    """The longest time of a job on the GPUs that it asks for."""
    phase_s: float = 3600.0
    """Seconds that each rate of bursty arrivals lasts."""


def generate(recipe: Recipe) -> Workload:
    """Make the workload of a recipe. Equal recipes make equal workloads. A longer one of the same seed does
    not begin with a shorter one."""
    draws = np.random.Generator(np.random.PCG64(recipe.seed)).random((5, recipe.jobs))
    sizes = _sizes(draws[0], recipe.gpus)
    durations_s = np.maximum(1.0, np.round(_durations(sizes, draws[1], draws[2], recipe.longest_s)))
    rate = _rate(recipe, float((sizes * durations_s).sum()))
    times = np.round(_times(recipe, draws[3], rate), 3)
    tenants = _pick(draws[4], TENANTS)
    jobs = in_order(
        linear_job(
            submitted_at=float(at),
            gpus=int(gpus),
            duration_s=float(duration_s),
            line=0,
            tenant=f"tenant{tenant + 1:02d}",
        )
        for at, gpus, duration_s, tenant in zip(times, sizes, durations_s, tenants, strict=True)
    )
    return Workload(
        f"{recipe.jobs} generated jobs (seed {recipe.seed})", jobs, notes=_described(recipe, rate)
    )


def _described(recipe: Recipe, jobs_per_second: float) -> tuple[str, ...]:
    """The distributions of the jobs, and where they come from."""
    per_hour = 3600 * jobs_per_second
    arrivals = f"arrivals: Poisson, {per_hour:.4g} jobs an hour"
    if recipe.arrivals is Arrivals.BURSTY:
        high = 2 / (1 + _LOW) * per_hour
        minutes = recipe.phase_s / 60
        arrivals = (
            f"arrivals: Poisson, {high:.4g} and {_LOW * high:.4g} jobs an hour by turns of {minutes:g} min "
            "(IBM, section IV-A)"
        )
    return (
        arrivals,
        "sizes and tenants: as often as in Philly (msr-fiddle/philly-traces)",
        "durations: lognormals fitted to Philly's jobs of each size",
    )


def _sizes(draws: Numbers, most: int) -> Numbers:
    known = [gpus for gpus in SIZES if gpus <= most]
    picked: Numbers = np.array(known)[_pick(draws, [SIZES[gpus] for gpus in known])]
    return picked


def _pick(draws: Numbers, counts: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """Indexes into `counts`, each as likely as its count is large."""
    shares = np.cumsum(counts) / sum(counts)
    return np.minimum(np.searchsorted(shares, draws, side="right"), len(counts) - 1)


def _durations(sizes: Numbers, which: Numbers, where: Numbers, longest_s: float) -> Numbers:
    classes = list(DURATIONS)
    drawn = np.zeros(len(sizes))
    kinds = np.searchsorted(classes, sizes, side="right") - 1
    for kind, gpus in enumerate(classes):
        those = kinds == kind
        drawn[those] = DURATIONS[gpus].draw(which[those], where[those], longest_s)
    return drawn


def _rate(recipe: Recipe, gpu_s: float) -> float:
    """Mean number of jobs per second."""
    if recipe.jobs_per_hour is not None:
        return recipe.jobs_per_hour / 3600
    return recipe.load * recipe.gpus * recipe.jobs / gpu_s


def _times(recipe: Recipe, draws: Numbers, rate: float) -> Numbers:
    """The times of arrival: a Poisson process in expected jobs, converted to the time at which as many are
    expected."""
    expected = np.cumsum(-np.log1p(-draws))
    if recipe.arrivals is Arrivals.POISSON:
        steady: Numbers = expected / rate
        return steady
    high = 2 * rate / (1 + _LOW)
    in_high, in_period = high * recipe.phase_s, high * recipe.phase_s * (1 + _LOW)
    periods, rest = np.divmod(expected, in_period)
    in_low = np.maximum(0.0, rest - in_high)
    bursty: Numbers = 2 * recipe.phase_s * periods + np.minimum(rest, in_high) / high + in_low / (_LOW * high)
    return bursty
