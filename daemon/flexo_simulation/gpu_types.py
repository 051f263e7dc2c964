"""Adapts the GPU types that a workload asks for to a cluster that may not have types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_simulation.workload import Workload


def for_cluster(workload: Workload, nodes: Sequence[NodeGroup]) -> Workload:
    """`workload` unchanged, if the cluster has types; if it has none, any GPU is good for all jobs."""
    typed = sum(1 for job in workload.jobs if job.shape.gpu_type)
    if not typed or any(group.gpu_type for group in nodes):
        return workload
    jobs = tuple(replace(job, shape=replace(job.shape, gpu_type="")) for job in workload.jobs)
    note = f"jobs that asked for a type of GPU, where here any one does: {typed:,}"
    return replace(workload, jobs=jobs, notes=(*workload.notes, note))
