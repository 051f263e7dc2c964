"""Plans for a cluster that gives jobs what flexod decides: the targets of a policy, each with its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from flexo.model.plans import Allocate, Plan, Snapshot
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.fitting import fitted
from flexo.policies.placement import Placement


def plan(policy: Policy, snapshot: Snapshot) -> Plan:
    """The policy's changes now, and the reasons. A simulation calls this at each of its events, so it must be
    fast."""
    jobs, placement = Jobs.of(snapshot), Placement(snapshot.nodes)
    said = policy.targets(jobs, placement)
    targets = fitted(said, jobs, placement)
    changing = targets.jobs if targets is said else tuple(_changing(targets, jobs, placement))
    return Plan(
        allocations=tuple(_allocate(target, placement) for target in changing),
        notes=targets.notes,
        drops=targets.drops,
        again_at=targets.again_at,
    )


def _allocate(target: Target, placement: Placement) -> Allocate:
    shares = placement.of(target.job) or ()
    return Allocate(target.job, shares, target.why, target.samples, target.guaranteed, target.shared)


def _changing(targets: Targets, jobs: Jobs, placement: Placement) -> Iterator[Target]:
    """The targets that give a job other shares than it has, or a guarantee."""
    before = {job.key: frozenset(job.shares) for job in jobs.training}
    for target in targets.jobs:
        if target.guaranteed or before[target.job] != frozenset(placement.of(target.job) or ()):
            yield target
