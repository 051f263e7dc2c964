"""The first policy: pending jobs first, then idle GPUs in even shares to elastic jobs (docs/policies.md)."""

from __future__ import annotations

from dataclasses import dataclass

from flexo.model import Plan, Snapshot
from flexo.policies import satellites


@dataclass(frozen=True, slots=True)
class GreedySettings:
    """What the administrator can set."""

    min_resize_interval_s: float = 60.0
    """Between two resizes of one job. It delays growing; giving back never waits."""


def plan(snapshot: Snapshot, settings: GreedySettings) -> Plan:
    """What to change now, and why for every elastic job.

    Applied again and again it comes to rest: each step raises the smallest share that it touches, and there
    are only so many shares.
    """
    return satellites.plan(snapshot, settings.min_resize_interval_s)
