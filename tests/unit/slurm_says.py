"""Fields that the Slurm adapter derives from Slurm's words, for the jobs and nodes of tests."""

from __future__ import annotations

from dataclasses import replace

from flexo.clusters.slurm.node_states import conditions
from flexo.clusters.slurm.wait_reasons import wait_reason
from flexo.model.nodes import Node
from flexo.model.queue import QueuedJob


def job_as_slurm_says(job: QueuedJob) -> QueuedJob:
    """`job` with the wait reason that its state and reason mean."""
    return replace(job, wait=wait_reason(job.state, job.reason))


def node_as_slurm_says(node: Node) -> Node:
    """`node` with the conditions that its `unusable`, ``STATE+FLAG: reason``, means."""
    if not node.unusable or node.conditions:
        return node
    state, *flags = node.unusable.partition(":")[0].split("+")
    return replace(node, conditions=conditions(state, flags, ""))
