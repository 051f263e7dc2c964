"""Keeps a pool in order: evicts jobs from Aggregators that are not theirs, and ends Aggregators that idle."""

from __future__ import annotations

from typing import Final

from flexo.aggregation.pool_state import PoolState
from flexo.model.aggregation import Eviction

EVICTED_AFTER_S: Final = 30.0
"""The time that a job may stay at an Aggregator that is not assigned to it any more, once the job has ended
or has taken its next assignment over."""
EVICTED_LATE_S: Final = 900.0
"""The same for a job that has not taken its next assignment over: it still needs the Aggregator."""


class PoolUpkeep:
    """See the module. `drain_after_s` 0: idle Aggregators stay."""

    def __init__(self, state: PoolState, drain_after_s: float) -> None:
        self._state = state
        self._drain_after_s = drain_after_s
        self._strangers: dict[Eviction, float] = {}
        """Jobs at Aggregators that are not assigned to them, with the time since when."""

    def drains(self, now: float) -> tuple[str, ...]:
        """Aggregators that no job has needed for long, the newest first, as many as are not wanted."""
        state, after_s = self._state, self._drain_after_s
        idle = set(state.idle(known.number for known in state.known.values()))
        staying = [known for known in state.known.values() if not known.draining]
        spare = max(0, len(staying) - state.wanted())
        unneeded = sorted((each for each in staying if each.number in idle), key=lambda each: -each.number)
        for each in staying:
            if each not in unneeded[:spare]:
                each.needed_at = now
        due = [each for each in unneeded[:spare] if after_s and now >= each.needed_at + after_s]
        for each in due:
            each.draining = True
        return tuple(each.attached.name for each in due)

    def why_drained(self, name: str) -> str:
        """The sentence on a drained Aggregator, for the event store."""
        return f"pool Aggregator {name} is told to end: no job has needed it for {self._drain_after_s:.0f} s"

    def evictions(self, now: float) -> tuple[Eviction, ...]:
        """Jobs that are still at an Aggregator long after their assignment there has ended."""
        strangers = {
            Eviction(known.attached.name, sums.job)
            for known in self._state.known.values()
            for sums in known.attached.jobs
            if not self._state.is_assigned(sums.job, known.number)
            and not self._state.may_be_adopted(sums.job)
        }
        self._strangers = {each: self._strangers.get(each, now) for each in strangers}
        due = [each for each, since in self._strangers.items() if now >= since + self._patience_s(each.job)]
        for each in due:
            self._strangers[each] = now
        return tuple(sorted(due, key=lambda each: (each.aggregator, each.job)))

    def _patience_s(self, name: str) -> float:
        job = next((each for each in self._state.jobs.values() if each.name == name), None)
        return EVICTED_AFTER_S if job is None or job.current else EVICTED_LATE_S
