"""The parts of a cluster: nodes, their conditions, and partitions."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flexo_protos.resources import Amount, Resources


class NodeCondition(enum.Enum):
    """A reason why nothing may be placed on a node now. Only a cluster's adapter sets it; its value is for
    people."""

    ENDING = "a job is ending there"
    """The job's resources count as free, but nothing starts on the node before the job has ended."""
    PLANNED = "kept for a pending job"
    """The cluster's own scheduler has planned the node for a pending job."""
    EXCLUSIVE = "held by one job alone"
    UNKNOWN = "not heard of yet"
    """The cluster's controller has just started, and waits for the node."""
    DRAIN = "drained"
    MAINTENANCE = "in maintenance"
    RESERVED = "reserved"
    REBOOT = "to be rebooted"
    OUT_OF_SERVICE = "out of service"
    """Anything else: down, powered off, on loan to nobody, or in use in a way that flexo cannot count."""


_SOON_FREE = frozenset({NodeCondition.ENDING, NodeCondition.PLANNED})


WANTED_EMPTY = frozenset(
    {NodeCondition.DRAIN, NodeCondition.MAINTENANCE, NodeCondition.RESERVED, NodeCondition.REBOOT}
)
"""Conditions by which an administrator requires a node to become empty."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node at one instant."""

    name: str
    capacity: Resources
    allocated: Resources
    partitions: frozenset[str]
    features: frozenset[str] = frozenset()
    unusable: str = ""
    """The cluster's reason why nothing may be placed here; "": the node is usable."""
    conditions: frozenset[NodeCondition] = frozenset()
    """The reasons in `unusable` as flexo distinguishes them; empty only if `unusable` is."""
    threads_per_core: int = 1
    """CPUs of one core. A cluster that allocates cores allocates these CPUs together."""

    @property
    def soon_free(self) -> bool:
        """Whether the node is healthy but reserved for a moment: a job is ending, or the next one is
        planned."""
        return bool(self.conditions) and self.conditions <= _SOON_FREE

    @property
    def in_order(self) -> bool:
        """Whether nobody has to fix anything on the node, whether or not something may be placed there."""
        healthy = _SOON_FREE | {NodeCondition.EXCLUSIVE, NodeCondition.UNKNOWN}
        return not self.unusable or (bool(self.conditions) and self.conditions <= healthy)

    @property
    def gpus(self) -> Amount:
        """Number of GPUs of the node."""
        return self.capacity.gpus

    @property
    def gpu_type(self) -> str:
        """The type of the node's GPUs; "": the node has none, or several types."""
        return self.capacity.gpu_type

    @property
    def gpus_idle(self) -> Amount:
        """GPUs that no job holds; 0 if the node is unusable."""
        return 0 if self.unusable else max(0, self.capacity.gpus - self.allocated.gpus)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: the facts that placement and preemption need."""

    name: str
    priority_tier: int
    nodes: frozenset[str]
    up: bool = True
