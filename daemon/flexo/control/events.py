"""Turns the changes of a plan into events for the event store, and collects the facts behind the plan."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from flexo.aggregation.auto_placement import Replaced
from flexo.clusters.base import ClusterState
from flexo.events import Event
from flexo.grants import ReconciledState
from flexo.model.aggregation import Summing
from flexo.model.plans import Action, Allocate, Grow, Plan
from flexo.model.queue import JobState
from flexo.model.training import TrainingJob
from flexo.words import held_by, workers
from flexo_protos.resources import as_number

_FACTS_OF_PENDING: Final = 50
_WHOSE: Final = {
    Summing.OWN: "the Aggregators of its own nodes",
    Summing.SATELLITES: "Aggregators in its own satellites",
    Summing.POOL: "pool Aggregators",
}


def of_allocations(plan: Plan, state: ClusterState, verb: str) -> Iterable[Event]:
    """Events for the changes of jobs on a cluster that allocates. `verb`: ``is `` or ``would be ``."""
    before = {job.key: job for job in state.training}
    for allocation in plan.allocations:
        text = f"{verb}{_change(before[allocation.job], allocation)}: {allocation.why}"
        yield Event(state.at, "allocate", allocation.job, text)
    for drop in plan.drops:
        yield Event(state.at, "drop", drop.job, f"{verb}refused: {drop.why}")


def _change(job: TrainingJob, allocation: Allocate) -> str:
    if not allocation.shares:
        return f"preempted, after {workers(job.allocated)}"
    where = ", ".join(f"{share.workers} on {share.node}" for share in allocation.shares)
    return f"resized from {workers(job.allocated)} to {where}" if job.shares else f"started with {where}"


def of_action(action: Action, reconciled: ReconciledState, now: float, would: str) -> Event:
    """The event for a change of a job's satellites. `would`: "" or ``would ``."""
    if isinstance(action, Grow):
        grows = f"grow by {workers(action.workers)}" if action.workers else "run an Aggregator"
        text = f"{would}{grows} on {action.node}: {action.why}"
        return Event(now, "grow", action.job, text)
    grant = next(
        grant
        for job in reconciled.jobs
        if job.key == action.job
        for grant in job.all_grants
        if grant.grant_id == action.grant_id
    )
    text = f"{would}give back {held_by(grant.workers)} on {grant.node}: {action.why}"
    return Event(now, "shrink", action.job, text)


def of_placements(changes: Iterable[Replaced], now: float) -> Iterable[Event]:
    """Events for jobs that leave it to flexod whose Aggregators sum their gradients."""
    for change in changes:
        whose = _WHOSE[change.summing]
        yield Event(now, "assign", change.job, f"its gradients are to be summed by {whose}: {change.why}")


def facts(state: ClusterState, reconciled: ReconciledState) -> str:
    """The facts behind a plan, as JSON."""
    pending = [job for job in state.jobs if job.state is JobState.PENDING and job.satellite is None]
    told = {
        "idle": {node.name: as_number(node.gpus_idle) for node in state.nodes if node.gpus_idle},
        "unusable": {node.name: node.unusable for node in state.nodes if node.unusable},
        "pending": [
            {
                "job": job.job_id,
                "user": job.user,
                "reason": job.reason,
                "gpus": as_number(job.resources.gpus),
                "nodes": job.num_nodes,
                "partitions": job.partitions,
            }
            for job in pending[:_FACTS_OF_PENDING]
        ],
        "pending_in_all": len(pending),
        "elastic": [
            {
                "job": str(job.key),
                "range": str(job.workers),
                "wanted": job.wanted,
                "training": job.training_workers,
                "scalable": job.scalable,
                "grants": [
                    f"{grant.grant_id} {grant.node} x{grant.workers} {grant.state.value}"
                    for grant in job.all_grants
                ],
            }
            for job in reconciled.jobs
        ],
    }
    return json.dumps(told, separators=(",", ":"))
