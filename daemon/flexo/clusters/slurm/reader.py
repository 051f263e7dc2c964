"""The seam between the adapter and its two ways of reading Slurm: commands and pyslurm."""

from __future__ import annotations

from typing import Protocol

from flexo.model import Node, Partition, SlurmJob


class Reader(Protocol):
    """Reads one kind of thing a call. Every call raises ClusterUnreachable."""

    @property
    def name(self) -> str:
        """What reads, with its release, for people: `pyslurm 25.11.0`."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        ...

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions."""
        ...

    def jobs(self) -> tuple[SlurmJob, ...]:
        """All jobs that wait, run or are ending."""
        ...
