"""The first policy: pending jobs first, then idle GPUs in even shares to elastic jobs (docs/policies.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flexo.model import Plan, Snapshot
from flexo.policies import satellites


@dataclass(frozen=True, slots=True)
class Greedy:
    """What the administrator can set (implements Policy)."""

    name: ClassVar[str] = "greedy"
    oracle: ClassVar[bool] = False

    min_resize_interval_s: float = 60.0
    """Between two resizes of one job. It delays growing; giving back never waits."""
    max_satellites: int | None = None
    """Of all jobs together; None: however many."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """What to change now, and why for every elastic job.

        Applied again and again it comes to rest: each step raises the smallest share that it touches, and
        there are only so many shares.
        """
        return satellites.plan(snapshot, self.min_resize_interval_s, max_satellites=self.max_satellites)
