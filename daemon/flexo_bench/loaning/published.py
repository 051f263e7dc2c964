"""The figures of loaning in Lyra's slides, whose rows are shown beside ours to compare their shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

PAPER = 'Li et al., "Lyra: Elastic Scheduling for Deep Learning Clusters" (EuroSys 2023), slides'
JOBS = 50_390
DAYS = 15.0
TRAINING_GPUS = 3_544
GPU_S_A_JOB = 65_600.0
"""Derived: 0.72 of the training GPUs for 15 days, over the jobs."""
INFERENCE_USE = 0.40


@dataclass(frozen=True)
class Row:
    """A row of the slides' table of simulations. Times are in seconds; nan: not printed."""

    queue: tuple[float, float, float]
    """Mean, median, 95th percentile."""
    jct: tuple[float, float, float]
    training_use: float
    overall_use: float
    preempted: float
    """Ratio of preemptions; the slides do not say to what."""


ROWS = {
    "baseline": Row((3072, 55, 8357), (16610, 791, 82933), 0.72, 0.52, 0.0),
    "basic": Row((2010, 26, 3358), (11236, 568, 56477), 0.86, 0.65, 0.1224),
    "advanced": Row((1835, 24, 3238), (10434, 525, 56553), 0.86, 0.68, 0.0735),
    "ideal": Row((1157, 22, 3204), (8891, 422, 41146), 0.93, 0.72, 0.0572),
}
NOTHING = Row((math.nan,) * 3, (math.nan,) * 3, math.nan, math.nan, math.nan)
ON_LOAN_USE = 0.93
"""Use of servers on loan ("above ~93%")."""
