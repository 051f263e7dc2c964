"""How fast the nodes of a heterogeneous job are, as its leader is told: by GPU type, as the site declares."""

from __future__ import annotations

from collections.abc import Mapping

from flexo.control.leaders import NodeSpeed
from flexo.control.slow_gpus import nodes_of
from flexo.model.elastic import ElasticJob
from flexo.policies.gpu_speeds import GpuSpeeds


def node_speeds(job: ElasticJob, types: Mapping[str, str], speeds: GpuSpeeds) -> tuple[NodeSpeed, ...]:
    """Of all nodes that `job` has or is to have workers on, in order of their names.

    `types`: the GPU type of each node. Empty for a job that is not heterogeneous: its workers take the same
    part of the batch each.
    """
    if not job.heterogeneous:
        return ()
    return tuple(NodeSpeed(node, speeds.of(types[node])) for node in sorted(nodes_of(job) & types.keys()))
