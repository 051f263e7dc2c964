"""Cyclic execution: how often a job runs in an Aggregator's execution cycle, what it loses, and its slots.

The formulas are those of AutoPS, section 3.3.1, with the corrections of floor for ceil. The execution cycle
C covers at least the longest iteration. A job of duration D runs floor(C / D) times in it, so each of its
iterations takes d = C / floor(C / D). Times are whole nanoseconds; losses are exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from typing import Protocol


class Periodic(Protocol):
    """The tasks of one job on one Aggregator, as the execution cycle sees them."""

    @property
    def duration_ns(self) -> int:
        """The duration of one iteration of the job alone (D_j)."""
        ...

    @property
    def execution_ns(self) -> int:
        """The CPU time of these tasks in one iteration."""
        ...


def iterations(cycle_ns: int, duration_ns: int) -> int:
    """How often a job runs in a cycle, which is not shorter than its iterations."""
    return cycle_ns // duration_ns


def slowed_ns(cycle_ns: int, duration_ns: int) -> Fraction:
    """The duration of an iteration in this cycle (d_jn), in nanoseconds."""
    return Fraction(cycle_ns, cycle_ns // duration_ns)


def loss(duration_ns: int, cycles_ns: Iterable[int]) -> Fraction:
    """The part of its speed that a job loses (L_j), from 0 to 1, on Aggregators with these cycles.

    The slowest Aggregator sets the pace of the job. No cycles: nothing is lost.
    """
    slowest = max((slowed_ns(cycle_ns, duration_ns) for cycle_ns in cycles_ns), default=Fraction(duration_ns))
    return 1 - duration_ns / slowest


def loses_less(limit: Fraction, cycle_ns: int, duration_ns: int) -> bool:
    """Whether a job loses less than `limit` in this cycle; exactly the limit is too much."""
    left_over = cycle_ns - duration_ns * (cycle_ns // duration_ns)
    return left_over * limit.denominator < limit.numerator * cycle_ns


def load_ns(cycle_ns: int, works: Iterable[Periodic]) -> int:
    """The CPU time that all tasks on an Aggregator need in one cycle (W_n), in nanoseconds."""
    return sum(cycle_ns // work.duration_ns * work.execution_ns for work in works)


@dataclass(frozen=True, slots=True)
class ExecutionSlot:
    """A span of an execution cycle in which an Aggregator works for one job. A request may have several."""

    job: str
    iteration: int
    """Counted from 0 within the cycle."""
    begin_ns: Fraction
    end_ns: Fraction


def schedule(cycle_ns: int, works: Mapping[str, Periodic]) -> tuple[ExecutionSlot, ...]:
    """The slots of all jobs in one cycle, in order of time. Raises ValueError if the load exceeds the cycle.

    Each iteration has a window of d_jn, and its slots lie in this window. Among the requests whose windows
    are open, the one whose window ends first runs (earliest deadline first; ties go by the name of the job).
    That order keeps every window, because the windows of a job follow each other without a gap and the load
    is at most the cycle.
    """
    load = load_ns(cycle_ns, works.values())
    if load > cycle_ns:
        raise ValueError(f"a cycle of {cycle_ns} ns cannot hold a load of {load} ns; move tasks away")
    counts = {job: iterations(cycle_ns, work.duration_ns) for job, work in works.items()}
    # in units of 1 / scale ns, every window begins and ends at a whole number
    scale = math.lcm(*counts.values())
    opening = sorted(
        (cycle_ns * scale // count * index, cycle_ns * scale // count * (index + 1), job, index)
        for job, count in counts.items()
        for index in range(count)
        if works[job].execution_ns
    )
    slots: list[ExecutionSlot] = []
    pending: list[tuple[int, str, int, int]] = []
    now, coming = 0, 0
    while pending or coming < len(opening):
        if not pending:
            now = max(now, opening[coming][0])
        while coming < len(opening) and opening[coming][0] <= now:
            _, closes, job, index = opening[coming]
            heappush(pending, (closes, job, index, works[job].execution_ns * scale))
            coming += 1
        closes, job, index, left = heappop(pending)
        until = now + left
        if coming < len(opening):
            until = min(until, opening[coming][0])
        _extend(slots, ExecutionSlot(job, index, Fraction(now, scale), Fraction(until, scale)))
        if left > until - now:
            heappush(pending, (closes, job, index, left - (until - now)))
        now = until
    return tuple(slots)


def _extend(slots: list[ExecutionSlot], slot: ExecutionSlot) -> None:
    """Append `slot`, as one with the last slot if the same request goes on."""
    last = slots[-1] if slots else None
    if last and (last.job, last.iteration, last.end_ns) == (slot.job, slot.iteration, slot.begin_ns):
        slots[-1] = ExecutionSlot(slot.job, slot.iteration, last.begin_ns, slot.end_ns)
    else:
        slots.append(slot)


def reserved_ns(cycle_ns: int, works: Mapping[str, Periodic], at_ns: int, served: Collection[str]) -> int:
    """The CPU time, in nanoseconds, that requests which are not late still need in this cycle.

    `at_ns`: time since the cycle began, below the cycle. `served`: jobs whose request of the present window
    has run. A request whose window is over is late and has no reserved slots any more.
    """
    reserved = 0
    for job, work in works.items():
        count = iterations(cycle_ns, work.duration_ns)
        begun = at_ns * count // cycle_ns + (job in served)
        reserved += max(0, count - begun) * work.execution_ns
    return reserved


def late_request_runs(cycle_ns: int, at_ns: int, reserved: int, execution_ns: int) -> bool:
    """Whether a late request runs in this cycle; otherwise it runs in the next one, as its first request.

    It runs if the rest of the cycle holds it beside the `reserved` time of the requests that are not late,
    so no other job loses (section 3.3.1, "Handling Outliers"). At worst, its job loses one iteration.
    """
    return at_ns + reserved + execution_ns <= cycle_ns
