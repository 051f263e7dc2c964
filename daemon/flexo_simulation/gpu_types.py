"""GPU types that a workload asks for, on a cluster that may not tell types apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_simulation.workload import Workload


def for_cluster(workload: Workload, nodes: Sequence[NodeGroup]) -> Workload:
    """`workload` as it is where the cluster has types; where it has none, any GPU will do for all jobs."""
    typed = sum(1 for job in workload.jobs if job.shape.gpu_type)
    if not typed or any(group.gpu_type for group in nodes):
        return workload
    jobs = tuple(replace(job, shape=replace(job.shape, gpu_type="")) for job in workload.jobs)
    note = f"jobs that asked for a type of GPU, where here any one does: {typed:,}"
    return replace(workload, jobs=jobs, notes=(*workload.notes, note))
