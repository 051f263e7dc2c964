"""Explains why a job is pending, and what would start it: `flexo why` of a job that waits."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Final

from flexo.clusters.base import ClusterState
from flexo.control.views import View
from flexo.model.nodes import Node
from flexo.model.queue import JobKey, JobState, QueuedJob, in_order_of_start
from flexo.policies.pending import could_start, waits_for_resources
from flexo.words import counted, duration, workers
from flexo_protos.resources import Resources, total

FAR_OFF_S: Final = 300 * 86_400.0
"""A start that is planned so late rests on jobs without a time limit, which count as endless: nobody can
foresee it."""


def headline_of_pending(job: QueuedJob, state: ClusterState) -> str:
    """``0 of 2-8 workers: pending, for resources (Resources): it needs 2 GPUs, and 1 is idle in partition
    train``."""
    size = job.elastic.workers if job.elastic is not None else "?"
    return f"0 of {size} workers: pending, {waits_for(job, state)}"


def explain_pending(job: QueuedJob, view: View) -> tuple[str, ...]:
    """Sentences on what the job waits for, on its turn, and on what its user can do."""
    state = view.state
    assert state is not None, "the job is from it"
    assert job.elastic is not None
    since = duration(max(0.0, state.at - job.submitted_at))
    told = [
        f"job {job.key} ({job.user}) has been pending for {since}, {job.wait.value} ({job.reason}):"
        f" it starts with {workers(job.elastic.workers.min)}, like any other job"
    ]
    if job.wait.is_for_resources:
        told += _satellites(job, view)
        told += _turn(job, view)
    told += _start(job, state.at)
    if job.remedy:
        told.append(job.remedy)
    return tuple(told)


def explain_rigid(job: QueuedJob, view: View) -> tuple[str, ...]:
    """Sentences on a job that is not elastic and, if it is pending, on what it waits for."""
    told = [f"job {job.key} is not elastic: it was submitted without --elastic"]
    if job.state is not JobState.PENDING or view.state is None:
        return tuple(told)
    since = duration(max(0.0, view.state.at - job.submitted_at))
    told.append(f"it has been pending for {since}, {waits_for(job, view.state)}")
    if job.wait.is_for_resources:
        told += _satellites(job, view)
        told += _turn(job, view)
    told += _start(job, view.state.at)
    if job.remedy:
        told.append(job.remedy)
    return tuple(told)


def places(view: View) -> dict[JobKey, int]:
    """The places of pending jobs that wait for their turn, from 1: in the policy's order, or else by the
    cluster's priorities."""
    if view.order or view.state is None:
        order: Sequence[JobKey] = view.order
    else:
        pending = [job for job in view.state.jobs if waits_for_resources(job)]
        order = [job.key for job in in_order_of_start(pending, view.state.partitions)]
    return {key: place for place, key in enumerate(order, start=1)}


def planned_start(job: QueuedJob, now: float) -> float:
    """The start that the cluster plans for a pending job; 0: it plans none, or cannot foresee any."""
    starts_at = job.started_at or 0.0
    return starts_at if 0.0 < starts_at - now < FAR_OFF_S else 0.0


def _turn(job: QueuedJob, view: View) -> list[str]:
    order = places(view)
    if job.key not in order:
        return []
    if view.order:
        return [f"in the policy's order of pending jobs it is number {order[job.key]} of {len(order)}"]
    return [f"by the cluster's priorities it is number {order[job.key]} of {len(order)} pending jobs"]


def waits_for(job: QueuedJob, state: ClusterState) -> str:
    """What a pending job waits for: ``for resources (Resources): it needs 2 GPUs, and 1 is idle in partition
    train``."""
    needs = f": {_needs(job, state)}" if job.wait.is_for_resources and job.resources.gpus else ""
    return f"{job.wait.value} ({job.reason}){needs}"


def _needs(job: QueuedJob, state: ClusterState) -> str:
    """``it needs 9 a100, and 2 are idle in partition train``: of the nodes of its partitions."""
    kind = job.resources.gpu_type or ("GPU" if job.resources.gpus == 1 else "GPUs")
    wanted = job.resources.gpus
    nodes = _its_nodes(job, state.nodes)
    has, idle = total(node.gpus for node in nodes), total(node.gpus_idle for node in nodes)
    where = _on_nodes(job)
    if wanted > has:
        return f"it needs {wanted} {kind}{where}, and {', '.join(job.partitions)} has only {has}"
    return f"it needs {wanted} {kind}{where}, and {idle} {'is' if idle == 1 else 'are'} idle in {_where(job)}"


def _on_nodes(job: QueuedJob) -> str:
    """`` on 3 nodes for itself alone``; "": on one node, or any."""
    whole = any(request.whole_nodes for request in job.requests)
    alone = " for itself alone" if whole else ""
    return f" on {counted(job.num_nodes, 'node')}{alone}" if whole or job.num_nodes > 1 else ""


def _where(job: QueuedJob) -> str:
    """``partition train``, ``partitions debug, train``."""
    return f"partition{'s' if len(job.partitions) > 1 else ''} {', '.join(job.partitions)}"


def _its_nodes(job: QueuedJob, nodes: Sequence[Node]) -> list[Node]:
    """Nodes of its partitions, with its GPU type if it asks for one."""
    partitions, kind = frozenset(job.partitions), job.resources.gpu_type
    return [node for node in nodes if node.partitions & partitions and kind in ("", node.gpu_type)]


def _satellites(job: QueuedJob, view: View) -> list[str]:
    """Sentences on what satellites and other jobs hold of the job's nodes, and on what lets it start."""
    state = view.state
    assert state is not None, "the job is from it"
    nodes = _its_nodes(job, state.nodes)
    held = _held_by_satellites(state, {node.name for node in nodes})
    gpus = total(each.gpus for each in held.values())
    have = gpus + total(node.gpus_idle for node in nodes)
    without = [replace(node, allocated=node.allocated.minus(held[node.name])) if node.name in held else node
               for node in state.nodes]  # fmt: skip
    enough = have >= job.resources.gpus
    helps = enough and (not job.requests or could_start(job, without, state.partitions))
    told = []
    if gpus:
        hold = f"satellites hold {'1 GPU' if gpus == 1 else f'{gpus} GPUs'} in {_where(job)}"
        if helps:
            told.append(f"{hold}, and give way to it, unless a job before it takes what they give back")
        else:
            few = f"with the idle ones these are {have} of the {job.resources.gpus} that it needs, so "
            told.append(
                f"{hold}, and keep them: {'' if enough else few}giving them back would not let it start"
            )
    return told if helps else [*told, *_in_its_way(job, state, nodes)]


def _held_by_satellites(state: ClusterState, nodes: Container[str]) -> dict[str, Resources]:
    """What satellites hold of these nodes, by node."""
    held: dict[str, Resources] = {}
    for job in state.jobs:
        if job.satellite is not None and job.state is JobState.RUNNING:
            for name in filter(nodes.__contains__, job.nodes):  # a satellite has one node
                held[name] = held[name] + job.resources if name in held else job.resources
    return held


def _in_its_way(job: QueuedJob, state: ClusterState, nodes: Sequence[Node]) -> list[str]:
    """Sentences on what has to change before the job can start: nodes that nobody may use, and other jobs."""
    told = []
    if unusable := [node for node in nodes if not node.in_order]:
        first, more = unusable[0], len(unusable) - 1
        others = f", and {counted(more, 'more node')} cannot be used" if more else ""
        told.append(f"{first.name} cannot be used ({first.unusable}){others}")
    names = {node.name for node in nodes}
    run = sum(
        other.state is JobState.RUNNING and other.satellite is None and not names.isdisjoint(other.nodes)
        for other in state.jobs
    )
    if run:
        told.append(
            f"{counted(run, 'job')} that {'is no satellite runs' if run == 1 else 'are no satellites run'} on"
            f" nodes of {_where(job)}: {'it has' if run == 1 else 'enough of them have'} to end first"
        )
    return told


def _start(job: QueuedJob, now: float) -> list[str]:
    """A sentence on the start that the cluster plans."""
    if starts_at := planned_start(job, now):
        when = duration(starts_at - now)
        return [f"the cluster plans its start in {when}, going by the time limits of the jobs that run"]
    if job.started_at is not None and job.started_at > now:
        return ["the cluster cannot foresee its start: jobs that run have no time limit"]
    return []
