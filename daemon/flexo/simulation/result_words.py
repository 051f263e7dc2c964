"""Figures of results in words: what tables on a terminal and in reports have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from flexo.simulation.results import Outcome, Result

Figure = tuple[str, Callable[[Result], str]]


def seconds(value: float) -> str:
    """``3469.7``; a dash where there is nothing to count."""
    return "-" if math.isnan(value) else f"{value:,.1f}"


def percent(value: float) -> str:
    """``81.7%``."""
    return "-" if math.isnan(value) else f"{100 * value:.1f}%"


FIGURES: Final[tuple[Figure, ...]] = (
    ("completion time, mean", lambda result: seconds(result.avg_jct_s)),
    ("  median", lambda result: seconds(result.median_jct_s)),
    ("  95th percentile", lambda result: seconds(result.p95_jct_s)),
    ("  99th percentile", lambda result: seconds(result.p99_jct_s)),
    ("  longest", lambda result: seconds(result.max_jct_s)),
    ("waiting time, mean", lambda result: seconds(result.avg_queue_s)),
    ("  median", lambda result: seconds(result.median_queue_s)),
    ("  95th percentile", lambda result: seconds(result.p95_queue_s)),
    ("first submission to last end", lambda result: seconds(result.makespan_s)),
    ("GPUs in use", lambda result: percent(result.gpu_utilization)),
    ("SJS efficiency", lambda result: percent(result.sjs_efficiency)),
    ("jobs finished", lambda result: f"{result.finished:,} of {result.jobs:,}"),
    ("jobs refused", lambda result: percent(result.drop_ratio)),
    ("resizes", lambda result: f"{result.resizes:,}"),
    ("preemptions", lambda result: f"{result.preemptions:,}"),
    ("the simulation took", lambda result: f"{result.wall_s:.1f} s"),
)
"""What is printed of a result. Times are seconds."""
ORACLE: Final = "oracle: goes by true running times, which no scheduler knows"


def title(outcome: Outcome) -> str:
    """The policy's name, and that it is an oracle."""
    return f"{outcome.policy} (oracle)" if outcome.result.oracle else outcome.policy
