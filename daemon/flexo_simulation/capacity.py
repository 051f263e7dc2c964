"""Tells which jobs an empty cluster can hold at all: the others would wait for ever."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flexo.model.nodes import Node
from flexo_protos.resources import Amount, Resources
from flexo_simulation.workload import TraceJob


class Capacity:
    """The GPUs of an empty cluster."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes: dict[str, list[Amount]] = {}
        for node in nodes:
            self._nodes.setdefault(node.gpu_type, []).append(node.gpus)
        self._workers = cache(self._count)

    def holds(self, job: TraceJob) -> bool:
        """Whether the fewest workers of `job` fit, all on one GPU type unless it may mix them."""
        return self._workers(job.shape, job.fungible, job.heterogeneous) >= job.workers.min

    def _count(self, shape: Resources, fungible: bool, heterogeneous: bool) -> int:
        anywhere = not shape.gpu_type or fungible or heterogeneous
        by_type = [
            sum(gpus // shape.gpus if shape.gpus else 1 << 30 for gpus in nodes)
            for gpu_type, nodes in self._nodes.items()
            if anywhere or gpu_type == shape.gpu_type
        ]
        return (sum(by_type) if heterogeneous else max(by_type, default=0)) if by_type else 0
