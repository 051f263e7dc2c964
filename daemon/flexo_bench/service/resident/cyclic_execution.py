"""Pure: when the requests of jobs that share a server may run in its execution cycle.

AutoPS, section 3.3.1: in each cycle, a job has a slot for each of its iterations. The formulas are those of
flexo.aggregation.cyclic. A cycle of length C has floor(C / D) equal windows for a job of duration D, and the
job has one request in each. A server with one job has nothing to protect, so its requests run at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexo.aggregation import cyclic
from flexo_bench.service.resident.frames import Cycle


@dataclass(slots=True)
class _Progress:
    """What one job has had so far."""

    step: int = 0
    """The latest step that was admitted."""
    runs_at_ns: int = 0
    """When the requests of this step may run."""
    window: int = -1
    """The latest window that it has used. Windows are counted from the server's first cycle."""
    cycle: int = -1
    used: int = 0
    """Windows of this cycle that it has used, or requests that have run as late ones in it."""


class CyclicExecution:
    """The admission of requests by one server. `began_ns`: when its first cycle begins. Mutable."""

    def __init__(self, cycle: Cycle, began_ns: int) -> None:
        self._cycle = cycle
        self._began_ns = began_ns
        self._progress = {job: _Progress() for job in cycle.works}

    @property
    def is_shared(self) -> bool:
        """Whether there are several jobs in the cycle."""
        return len(self._cycle.works) > 1

    def runs_at(self, job: str, step: int, now_ns: int) -> int:
        """When a request of this job may run that has come now: now, or later.

        All requests of one `step` run from the same time on. An early one waits for the next window. A late
        one runs if the slots of the cycle allow it, else in the next cycle.
        """
        if job not in self._progress or not self.is_shared:
            return now_ns
        progress = self._progress[job]
        if step > progress.step:
            progress.step, progress.runs_at_ns = step, self._admit(job, progress, now_ns)
        return max(now_ns, progress.runs_at_ns)

    def _admit(self, job: str, progress: _Progress, now_ns: int) -> int:
        cycle_ns, count = self._cycle.cycle_ns, self._count(job)
        number, at_ns = divmod(now_ns - self._began_ns, cycle_ns)
        window = number * count + at_ns * count // cycle_ns
        if window > progress.window:
            self._use(progress, window, number)
            return now_ns
        if progress.cycle == number and progress.used <= window % count:
            return self._admit_late(job, progress, number, at_ns, now_ns)
        opens = progress.window + 1
        self._use(progress, opens, opens // count)
        return self._opens_ns(opens, count)

    def _admit_late(self, job: str, progress: _Progress, number: int, at_ns: int, now_ns: int) -> int:
        """A window of this cycle has passed without a request, and the present one is used."""
        cycle_ns, works = self._cycle.cycle_ns, self._cycle.works
        reserved = cyclic.reserved_ns(cycle_ns, works, at_ns, self._served(number, at_ns))
        if cyclic.late_request_runs(cycle_ns, at_ns, reserved, works[job].execution_ns):
            progress.used += 1
            return now_ns
        count = self._count(job)
        opens = (number + 1) * count
        self._use(progress, opens, number + 1)
        return self._opens_ns(opens, count)

    def _use(self, progress: _Progress, window: int, cycle: int) -> None:
        progress.used = progress.used + 1 if cycle == progress.cycle else 1
        progress.window, progress.cycle = window, cycle

    def _served(self, number: int, at_ns: int) -> set[str]:
        """Jobs whose request of the present window has run."""
        found = set()
        for job, progress in self._progress.items():
            count = self._count(job)
            if progress.window >= number * count + at_ns * count // self._cycle.cycle_ns:
                found.add(job)
        return found

    def _count(self, job: str) -> int:
        return cyclic.iterations(self._cycle.cycle_ns, self._cycle.works[job].duration_ns)

    def _opens_ns(self, window: int, count: int) -> int:
        return self._began_ns - (-window * self._cycle.cycle_ns // count)
