"""Gives up on pending jobs that do not start although room has been kept for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flexo.events import Event

_PASS_OVER_S: Final = 1800.0


class Patience:
    """How long resources have been set aside for pending jobs, and who has had enough."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._passed_until: dict[int, float] = {}

    def passed_over(self, now: float) -> frozenset[int]:
        """Jobs for which nothing is set aside now."""
        self._passed_until = {job_id: until for job_id, until in self._passed_until.items() if until > now}
        return frozenset(self._passed_until)

    def give_up(self, set_aside: Iterable[int], patience_s: float, now: float) -> list[Event]:
        """Pass over those of the jobs that something is set aside for that have not started for too long.

        A job that does not start although there is room waits for something that flexo does not know.
        """
        self._since = {job_id: self._since.get(job_id, now) for job_id in set_aside}
        late = [job_id for job_id, since in self._since.items() if now - since > patience_s]
        self._passed_until.update((job_id, now + _PASS_OVER_S) for job_id in late)
        return [
            Event(
                now,
                "wait",
                None,
                f"pending job {job_id} did not start within {patience_s:.0f} s although there was room;"
                f" nothing is kept for it for {_PASS_OVER_S / 60:.0f} min",
            )
            for job_id in late
        ]
