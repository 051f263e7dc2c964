"""What a cluster is made of: nodes, the conditions that they are in, and partitions."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flexo_protos.resources import Amount, Resources


class NodeCondition(enum.Enum):
    """Why nothing may be placed on a node now. Only a cluster's adapter fills it; its value is for people."""

    ENDING = "a job is ending there"
    """Its resources count as free, and nothing starts there before it has ended."""
    PLANNED = "kept for a pending job"
    """The cluster's own scheduler has one in mind."""
    EXCLUSIVE = "held by one job alone"
    UNKNOWN = "not heard of yet"
    """The cluster's controller has just begun, and waits for the node."""
    DRAIN = "drained"
    MAINTENANCE = "in maintenance"
    RESERVED = "reserved"
    REBOOT = "to be rebooted"
    OUT_OF_SERVICE = "out of service"
    """Down, powered off, on loan to nobody, in use in a way that flexo cannot count: anything else."""


_SOON_FREE = frozenset({NodeCondition.ENDING, NodeCondition.PLANNED})


WANTED_EMPTY = frozenset(
    {NodeCondition.DRAIN, NodeCondition.MAINTENANCE, NodeCondition.RESERVED, NodeCondition.REBOOT}
)
"""An administrator wants everything to leave such a node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node at one instant."""

    name: str
    capacity: Resources
    allocated: Resources
    partitions: frozenset[str]
    features: frozenset[str] = frozenset()
    unusable: str = ""
    """Why nothing may be placed here, in the cluster's words; "" when it may."""
    conditions: frozenset[NodeCondition] = frozenset()
    """The same as flexo tells it apart; empty only where `unusable` is."""
    threads_per_core: int = 1
    """CPUs that are allocated together where the cluster allocates cores."""

    @property
    def soon_free(self) -> bool:
        """Whether it is healthy, but kept for a moment: a job is ending, or the next one is chosen."""
        return bool(self.conditions) and self.conditions <= _SOON_FREE

    @property
    def in_order(self) -> bool:
        """Whether nobody has to fix anything on it, whether or not something may be placed there."""
        healthy = _SOON_FREE | {NodeCondition.EXCLUSIVE, NodeCondition.UNKNOWN}
        return not self.unusable or (bool(self.conditions) and self.conditions <= healthy)

    @property
    def gpus(self) -> Amount:
        """GPUs that it has."""
        return self.capacity.gpus

    @property
    def gpu_type(self) -> str:
        """Of its GPUs; "": it has none, or several types."""
        return self.capacity.gpu_type

    @property
    def gpus_idle(self) -> Amount:
        """GPUs that nobody holds, on a node that may be used."""
        return 0 if self.unusable else max(0, self.capacity.gpus - self.allocated.gpus)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, as far as placing and preempting go."""

    name: str
    priority_tier: int
    nodes: frozenset[str]
    up: bool = True
