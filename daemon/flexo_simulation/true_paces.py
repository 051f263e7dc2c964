"""The true paces of jobs on the GPU types that they are given, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence

from flexo.model.nodes import Node
from flexo.model.training import NodeShare
from flexo.policies.gpu_speeds import GpuSpeeds, Paces
from flexo_simulation.workload import TraceJob


class TruePaces:
    """The true paces of the jobs on one cluster."""

    def __init__(self, nodes: Sequence[Node], speeds: GpuSpeeds) -> None:
        self._type_of = {node.name: node.gpu_type for node in nodes}
        types = set(self._type_of.values())
        self._paces = Paces(speeds, types)
        self._only_type = next(iter(types)) if len(types) == 1 else None

    def of(self, job: TraceJob, shares: Sequence[NodeShare]) -> float:
        """The speed of a job with `shares`, relative to the type that it asks for."""
        asked = job.shape.gpu_type
        if not shares or (self._only_type is not None and asked in ("", self._only_type)):
            return 1.0
        workers: dict[str, int] = {}
        for share in shares:
            gpu_type = self._type_of[share.node]
            workers[gpu_type] = workers.get(gpu_type, 0) + share.workers
        return self._paces.of(asked, workers, job.heterogeneous)
