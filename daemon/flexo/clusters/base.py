"""The interface between the controller and a cluster: look, extend a lease, cancel, requeue, lend servers.

Satellites are submitted by the job's leader as its user, so granting is not here. A cluster that starts,
resizes and preempts jobs itself (`ClusterTraits.allocates`) is told what jobs are to have instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flexo.model import Allocate, Drop, JobKey, Node, Partition, Quota, SlurmJob, TrainingJob


class ClusterUnreachable(Exception):
    """The cluster's controller did not answer; the message says what was asked and what came back."""


class MayNotAct(ClusterUnreachable):
    """flexod has been replaced by another one, and may change nothing any more; the message says by which."""


class ActionRefused(Exception):
    """The cluster answered no; the message is its own words with what was asked."""

    def __init__(self, message: str, jobs: frozenset[int] = frozenset()) -> None:
        """`jobs`: of several that were asked for at once, those that are named in the refusal."""
        self.jobs = jobs
        super().__init__(message)


class ImpossiblePlan(Exception):
    """A plan that cannot be carried out, a defect of its policy: the message names job, node and numbers."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One look at the cluster."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[SlurmJob, ...]
    read_cost_s: float
    """Wall time of the reads: what the adaptive interval goes by."""
    training: tuple[TrainingJob, ...] = ()
    """Where the cluster itself knows the jobs that train: all of them, in the order of submission."""
    quotas: tuple[Quota, ...] = ()
    """What tenants are guaranteed."""
    ended: int = 0
    """Jobs of `training` that have ended since the cluster was there."""


@dataclass(frozen=True, slots=True)
class ClusterTraits:
    """What does not change while the cluster's controller runs; asked once and after reconnecting."""

    name: str
    version: str
    backfill_interval_s: float
    """How long a satellite may have to wait for its turn while bigger jobs are pending."""
    starts_in_a_turn: int | None = None
    """Of a partition, at most so many satellites start in one such turn; None: not known."""
    allocates: bool = False
    """Whether it gives jobs what `allocate` says, and needs no satellites for it."""


@dataclass(frozen=True, slots=True)
class Priority:
    """What a pending job's priority is to be: of those of one tier the highest starts first."""

    job_id: int
    priority: int


@dataclass(frozen=True, slots=True)
class UserShare:
    """A user's fairshare factor: from 0, has had far more than is due, to 1, has had nothing."""

    user: str
    factor: float


@dataclass(frozen=True, slots=True)
class UserShares:
    """One look at all users' shares."""

    shares: tuple[UserShare, ...]
    read_cost_s: float


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    state: str
    """In the cluster's word: COMPLETED, FAILED, TIMEOUT, CANCELLED, REQUEUED, ..."""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: str = ""
    """Exit status and signal, ``1:0``; "" if it is not known."""
    known_by: str = ""
    """Who said so: slurmctld, accounting."""


@runtime_checkable
class KnowsEnds(Protocol):
    """A cluster that may know how jobs ended. Not every one does."""

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        """Of those of `keys` of which it is known. May be called beside other calls, as `extend` may."""
        ...


class Cluster(Protocol):
    """What the controller needs of a cluster. All calls block; each raises the errors above."""

    def traits(self) -> ClusterTraits:
        """What holds while the cluster's controller runs."""
        ...

    def observe(self) -> ClusterState:
        """One look at everything that a policy may need."""
        ...

    def extend(self, satellite_job_ids: Sequence[int], seconds_from_now: int) -> None:
        """Move the ends of running satellites' time limits to `seconds_from_now` from now.

        Raises ActionRefused, with the jobs, where some are refused; the others are extended all the same.
        """
        ...

    def cancel(self, satellite_job_id: int) -> None:
        """End a satellite whose job is gone; no error if it has ended meanwhile."""
        ...

    def requeue(self, job_id: int) -> None:
        """Preempt a running base: it waits again, as a new job (its restart count grows).

        A job that has ended meanwhile stays ended, and is no error. Raises ActionRefused where it may not be
        requeued.
        """
        ...

    def lend(self, nodes: frozenset[str]) -> None:
        """Let the borrowed partition have exactly these nodes; said again, it changes nothing.

        Jobs on nodes that it loses run on.
        """
        ...

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set the priorities of pending jobs; no error for those that have started or ended meanwhile.

        Raises ActionRefused where others are refused; the rest is set all the same.
        """
        ...

    def user_shares(self) -> UserShares:
        """What users have had of what is due to them. Raises ActionRefused where nobody keeps that."""
        ...

    def allocate(self, allocations: Sequence[Allocate], drops: Sequence[Drop]) -> None:
        """Let jobs have exactly this, all at once; refuse `drops` for good.

        Raises ImpossiblePlan, and then has changed nothing; ActionRefused where `allocates` is false.
        """
        ...
