"""Counts what happens in flexod from its start on: cycles, questions to the cluster, events, ended loans."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from flexo.clusters.base import ANSWERED, FAILED, SILENT
from flexo.control.watch import DONE, MISTAKE, UNREACHABLE
from flexo.events import KINDS, Event
from flexo.model.loans import PastLoan

_CYCLE_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_COMMAND_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
_RECLAIM_S: Final = (5.0, 10.0, 15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0)


class Counters:
    """A `flexo.control.watch.Watch` that also counts queries of the cluster. Usable from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # else each counter has a second metric, the time at which it was made
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._steps = count(1)
        self._moves = 0
        self._in_cycle = False
        self._cycles = Histogram(
            "flexo_cycle_duration_seconds",
            "How long the loop's turns took: looking at the cluster, deciding, acting, writing it down.",
            registry=registry,
            buckets=_CYCLE_S,
        )
        self._ended = Counter(
            "flexo_cycles",
            "The loop's turns, by how they ended.",
            ["outcome"],
            registry=registry,
        )
        for outcome in (DONE, UNREACHABLE, MISTAKE):
            self._ended.labels(outcome)
        self._commands = Histogram(
            "flexo_slurm_command_duration_seconds",
            "How long questions and commands to the cluster took.",
            ["command"],
            registry=registry,
            buckets=_COMMAND_S,
        )
        self._answers = Counter(
            "flexo_slurm_commands",
            "Questions and commands to the cluster, by how they ended.",
            ["command", "outcome"],
            registry=registry,
        )
        self._events = Counter(
            "flexo_events",
            "What was seen, decided and done, by kind, as in flexo events.",
            ["kind"],
            registry=registry,
        )
        for kind in KINDS:
            self._events.labels(kind)
        self._reclaims = Histogram(
            "flexo_reclaim_duration_seconds",
            "From calling a server on loan back to its being empty.",
            registry=registry,
            buckets=_RECLAIM_S,
        )
        self._late = Counter(
            "flexo_reclaims_late", "Servers on loan that were empty after their deadline.", registry=registry
        )
        self._loans = Counter("flexo_loans_ended", "Loans that are over.", registry=registry)
        self._scaled_in = Counter(
            "flexo_reclaim_workers_scaled_in",
            "Workers that were told to leave servers called back.",
            registry=registry,
        )
        self._preempted = Counter(
            "flexo_reclaim_bases_preempted",
            "Bases of jobs that were preempted on servers called back.",
            registry=registry,
        )

    @property
    def moves(self) -> int | None:
        """A number that changes with each step of a cycle; None between two cycles."""
        return self._moves if self._in_cycle else None

    def cycle_began(self) -> None:
        """Note that a cycle begins."""
        self._moves, self._in_cycle = next(self._steps), True

    def cycle_ended(self, outcome: str, seconds: float) -> None:
        """Count a cycle that took `seconds`."""
        self._in_cycle = False
        self._cycles.observe(seconds)
        self._ended.labels(outcome).inc()

    def command_ended(self, command: str, outcome: str, seconds: float) -> None:
        """Count a query or command that took `seconds`."""
        self._moves = next(self._steps)
        self._commands.labels(command).observe(seconds)
        for each in (ANSWERED, FAILED, SILENT):  # all from the first on, so that rates begin at 0
            self._answers.labels(command, each).inc(each == outcome)

    def happened(self, events: Iterable[Event]) -> None:
        """Count events that were recorded."""
        for event in events:
            self._events.labels(event.kind).inc()

    def loans_ended(self, loans: Iterable[PastLoan]) -> None:
        """Count loans that are over."""
        for loan in loans:
            self._loans.inc()
            self._late.inc(loan.late)
            self._scaled_in.inc(loan.workers_scaled_in)
            self._preempted.inc(loan.bases_preempted)
            if loan.reclaim_s is not None:
                self._reclaims.observe(loan.reclaim_s)
