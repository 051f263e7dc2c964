"""The interface between the adapter and its two ways of reading Slurm: commands and pyslurm."""

from __future__ import annotations

from typing import Protocol

from flexo.model.nodes import Node, Partition
from flexo.model.queue import QueuedJob


class Reader(Protocol):
    """Reads Slurm's jobs, nodes and partitions. Every call may raise ClusterUnreachable."""

    @property
    def name(self) -> str:
        """The name of the reader, with its release, for people: `pyslurm 25.11.0`."""
        ...

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions."""
        ...

    def look(self) -> tuple[tuple[QueuedJob, ...], tuple[Node, ...]]:
        """All jobs that wait, run or are ending, and all nodes.

        Slurm is asked for the jobs first, so that a job that starts in between is not seen as idle GPUs.
        """
        ...
