"""Tells a leader how fast the nodes of its heterogeneous job are: by GPU type, as the site declares."""

from __future__ import annotations

from collections.abc import Mapping

from flexo.control.leaders import NodeSpeed
from flexo.control.slow_gpus import nodes_of
from flexo.model.elastic import ElasticJob
from flexo.policies.gpu_speeds import GpuSpeeds


def node_speeds(job: ElasticJob, types: Mapping[str, str], speeds: GpuSpeeds) -> tuple[NodeSpeed, ...]:
    """The speeds of all nodes on which `job` has or is to have workers, sorted by name.

    `types`: the GPU type of each node. A job that is not heterogeneous has no speeds: each of its workers
    takes the same part of the batch.
    """
    if not job.heterogeneous:
        return ()
    return tuple(NodeSpeed(node, speeds.of(types[node])) for node in sorted(nodes_of(job) & types.keys()))
