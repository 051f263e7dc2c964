"""The interface between the controller and a cluster: look, extend a satellite's lease, cancel one.

Satellites are submitted by the job's leader as its user, so granting is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flexo.model import Node, Partition, SlurmJob


class ClusterUnreachable(Exception):
    """The cluster's controller did not answer; the message says what was asked and what came back."""


class ActionRefused(Exception):
    """The cluster answered no; the message is its own words with what was asked."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One look at the cluster."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[SlurmJob, ...]
    read_cost_s: float
    """Wall time of the reads: what the adaptive interval goes by."""


@dataclass(frozen=True, slots=True)
class ClusterTraits:
    """What does not change while the cluster's controller runs; asked once and after reconnecting."""

    name: str
    version: str
    backfill_interval_s: float
    """How long a satellite may have to wait for its turn while bigger jobs are pending."""


class Cluster(Protocol):
    """What the controller needs of a cluster. All calls block; each raises the errors above."""

    def traits(self) -> ClusterTraits:
        """What holds while the cluster's controller runs."""
        ...

    def observe(self) -> ClusterState:
        """One look at everything that a policy may need."""
        ...

    def extend(self, satellite_job_id: int, seconds_from_now: int) -> None:
        """Move the end of a running satellite's time limit to `seconds_from_now` from now."""
        ...

    def cancel(self, satellite_job_id: int) -> None:
        """End a satellite whose job is gone; no error if it has ended meanwhile."""
        ...
