"""Reads how the job's GPU is used, where the job lets another one in, from the coordinator of this node.

A job whose GPU is shared has one worker with one GPU. Its leader is on the same node, so it reads the file
of the coordinator itself (horovod_elastic.sharing.status).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from flexo_protos.v1 import jobs_pb2
from horovod_elastic.sharing import status
from horovod_elastic.sharing.environment import folder_of, gpu_number

OLD_S = 10.0
"""An older status is not reported: its coordinator runs no more."""
_MIB = 1 << 20


def folder_on(node: str, environment: Mapping[str, str]) -> Path:
    """The folder of the coordinator of `node`. `%N` in FLEXO_SHARING_FOLDER stands for the node's name, for
    hosts with several nodes."""
    return Path(str(folder_of(environment)).replace("%N", node))


def gpu_uses(node: str, job_id: str, environment: Mapping[str, str]) -> list[jobs_pb2.GpuUse]:
    """The uses of the GPUs on this node, called `node` by the cluster, that this job holds and shares."""
    try:
        found = status.read(folder_on(node, environment))
    except status.NoStatus:
        return []
    if time.time() - found.updated_at > OLD_S:
        return []
    mine = ((gpu, gpu_number(gpu.name)) for gpu in found.gpus if _is_mine(gpu, job_id))
    return [_use(gpu, node, number) for gpu, number in mine if number is not None]


def _is_mine(gpu: status.Gpu, job_id: str) -> bool:
    holder = gpu.guarantee
    return holder is not None and holder.job == job_id and holder.uid == os.getuid()


def _use(gpu: status.Gpu, node: str, number: int) -> jobs_pb2.GpuUse:
    holder = gpu.guarantee
    return jobs_pb2.GpuUse(
        node=node,
        gpu=number,
        utilization=min(1.0, max(0.0, round(gpu.utilization, 2))),
        memory_mib=gpu.memory_total // _MIB,
        peak_mib=(max(holder.peak, holder.memory) if holder else 0) // _MIB,
        slowdown=round(max(0.0, gpu.guarantee_slowdown or 0.0), 4),
        opportunistic_share=min(1.0, round(gpu.opportunistic_share or 0.0, 2)),
        steady=holder is not None and not holder.stale,
    )
