"""Figures of results as text, for the tables on a terminal and in reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from flexo.words import in_units
from flexo_simulation.loan_story import LoanFigures
from flexo_simulation.results import Result, SimulatedRun

Figure = tuple[str, Callable[[Result], str]]
LoanFigure = tuple[str, Callable[[LoanFigures], str]]


def time_of(seconds: float) -> str:
    """A time with three digits, such as ``57.8 min`` or ``5.21 h``; a dash if there is nothing to count."""
    if math.isnan(seconds):
        return "-"
    value, unit = in_units(seconds)
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def percent(value: float) -> str:
    """A share as text, such as ``81.7%``; a dash if there is nothing to count."""
    return "-" if math.isnan(value) else f"{100 * value:.1f}%"


def ratio(value: float) -> str:
    """A ratio as text, such as ``1.35``; a dash if there is nothing to count."""
    return "-" if math.isnan(value) else f"{value:.2f}"


FIGURES: Final[tuple[Figure, ...]] = (
    ("completion time, mean", lambda result: time_of(result.avg_jct_s)),
    ("  median", lambda result: time_of(result.median_jct_s)),
    ("  95th percentile", lambda result: time_of(result.p95_jct_s)),
    ("  99th percentile", lambda result: time_of(result.p99_jct_s)),
    ("  longest", lambda result: time_of(result.max_jct_s)),
    ("waiting time, mean", lambda result: time_of(result.avg_queue_s)),
    ("  median", lambda result: time_of(result.median_queue_s)),
    ("  95th percentile", lambda result: time_of(result.p95_queue_s)),
    ("first submission to last end", lambda result: time_of(result.makespan_s)),
    ("GPUs in use", lambda result: percent(result.gpu_utilization)),
    ("SJS efficiency", lambda result: percent(result.sjs_efficiency)),
    ("finish-time fairness, worst", lambda result: ratio(result.worst_fairness)),
    ("  jobs above 1", lambda result: percent(result.unfair_share)),
    ("jobs finished", lambda result: f"{result.finished:,} of {result.jobs:,}"),
    ("jobs refused", lambda result: percent(result.drop_ratio)),
    ("resizes", lambda result: f"{result.resizes:,}"),
    ("preemptions", lambda result: f"{result.preemptions:,}"),
    ("the simulation took", lambda result: time_of(result.wall_s)),
)
"""The printed figures of a result."""
LOAN_FIGURES: Final[tuple[LoanFigure, ...]] = (
    ("servers lent, each time", lambda loans: f"{loans.loans:,}"),
    ("  hours of them", lambda loans: f"{loans.server_hours:,.0f}"),
    ("reclaims", lambda loans: f"{loans.reclaims:,}"),
    ("  of servers", lambda loans: f"{loans.servers_reclaimed:,}"),
    ("  emptied beside them", lambda loans: f"{loans.servers_emptied_aside:,}"),
    ("  longest", lambda loans: time_of(loans.longest_reclaim_s)),
    ("deadlines missed", lambda loans: f"{loans.deadlines_missed:,}"),
    ("jobs on loaned servers", lambda loans: f"{loans.jobs_on_loan:,}"),
    ("  preempted to vacate them", lambda loans: percent(loans.preempted_of_on_loan)),
    ("preemptions to vacate servers", lambda loans: f"{loans.bases_preempted:,}"),
    ("  to all jobs", lambda loans: percent(loans.preemptions_per_job)),
    ("workers scaled in for it", lambda loans: f"{loans.workers_scaled_in:,}"),
    ("GPUs in use on training nodes", lambda loans: percent(loans.training_use)),
    ("  on loaned servers", lambda loans: percent(loans.on_loan_use)),
    ("  on both clusters, by inference too", lambda loans: percent(loans.overall_use)),
    ("server hours inference lacked", lambda loans: f"{loans.inference_short_server_hours:,.1f}"),
)
"""The printed figures of loans, where there is an inference cluster."""
ORACLE: Final = "oracle: goes by true running times, which no scheduler knows"


def rows(outcomes: Sequence[SimulatedRun]) -> list[tuple[str, ...]]:
    """The lines of a table: a figure's name, and its value for each outcome."""
    lines = [(name, *(figure(outcome.result) for outcome in outcomes)) for name, figure in FIGURES]
    loans = [outcome.result.loans for outcome in outcomes]
    if any(loans):
        lines += [(name, *(figure(each) if each else "-" for each in loans)) for name, figure in LOAN_FIGURES]
    return lines


def title(outcome: SimulatedRun) -> str:
    """The policy's name, marked if it is an oracle."""
    return f"{outcome.policy} (oracle)" if outcome.result.oracle else outcome.policy
