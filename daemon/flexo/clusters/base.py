"""The interface between the controller and a cluster: a small core, and capabilities that a kind may have.

Every kind of cluster can be observed, and can extend the time limits of satellites and cancel them
(`Cluster`). The optional abilities of a kind are protocols of their own: `Allocates`, `Lends`, `Prioritizes`,
`Requeues`, `SharesByUser`, `KnowsEnds`. A satellite is submitted by its job's leader as the job's user, so
granting is not here. docs/howto/write-a-cluster.md shows a whole kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from flexo.model.nodes import Node, Partition
from flexo.model.plans import Allocate, Drop
from flexo.model.queue import JobKey, Principal, QueuedJob
from flexo.model.training import Quota, TrainingJob


class ClusterUnreachable(Exception):
    """The cluster's controller did not answer; the message says what was asked and what came back."""


class MayNotAct(ClusterUnreachable):
    """flexod has been replaced by another one, and may change nothing any more; the message says by which."""


class ActionRefused(Exception):
    """The cluster refused a command; the message has the command and the cluster's own words."""

    def __init__(self, message: str, jobs: frozenset[str] = frozenset()) -> None:
        """`jobs`: if the command was for several jobs, those that the refusal names."""
        self.jobs = jobs
        super().__init__(message)


class ImpossiblePlan(Exception):
    """A plan that cannot be carried out, because of a defect of its policy; the message names job, node and
    numbers."""


ANSWERED: Final = "done"
FAILED: Final = "failed"
"""The cluster refused, or the command failed otherwise."""
SILENT: Final = "no answer"
"""The cluster did not answer in time, or could not be asked."""

CallEnded = Callable[[str, str, float], None]
"""Called after each question and command: its name, outcome (ANSWERED, FAILED, SILENT) and seconds."""
MayAct = Callable[[], None]
"""Called before each command that changes something, and while any command runs. Raises MayNotAct."""


def nobody_counts(command: str, outcome: str, seconds: float) -> None:
    """The `CallEnded` that counts nothing."""


def always() -> None:
    """The `MayAct` of a flexod that is the only one: it never raises."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The partitions of lent servers, and the command that edits them."""

    partition: str
    edit_command: tuple[str, ...] = ()
    """The words of the command that edits the partitions; (): the cluster's own, with the rights of flexod's
    account."""
    satellite_partition: str = ""
    """The partition of satellites on lent servers, below that of base jobs; "": satellites have none of their
    own."""
    static: bool = False
    """The partition holds all inference servers, and is never edited."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """All partitions of lent servers. The one by which a loan is known is last, so that an edit cut short
        is repeated."""
        return tuple(name for name in (self.satellite_partition, self.partition) if name)


@dataclass(frozen=True, slots=True)
class Site:
    """The settings that flexod gives a kind of cluster, besides the kind's own."""

    borrowed: Borrowed | None = None
    """The partitions of lent servers; None: no servers are lent."""
    shared_partition: str = ""
    """The partition of satellites on shared GPUs; "": no GPUs are shared."""
    call_ended: CallEnded = nobody_counts
    may_act: MayAct = always


@dataclass(frozen=True, slots=True)
class Privacy:
    """What the cluster hides from its users of each other, so that flexod hides it as well."""

    jobs: bool = False
    """Whether users see their own jobs only."""
    nodes: bool = False
    """Whether users see no nodes."""
    readers: frozenset[Principal] = frozenset()
    """Accounts from which the cluster hides nothing, besides root."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The result of one poll of the cluster."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[QueuedJob, ...]
    read_cost_s: float
    """The wall time of the reads; the poll interval depends on it."""
    training: tuple[TrainingJob, ...] = ()
    """All jobs that train, in the order of submission, if the cluster itself knows them."""
    quotas: tuple[Quota, ...] = ()
    """The guarantees of tenants."""
    ended: int = 0
    """The number of jobs of `training` that have ended since the cluster began."""
    privacy: Privacy = Privacy()


@dataclass(frozen=True, slots=True)
class StartBounds:
    """The limits within which a cluster starts submitted satellites, if there is room for them."""

    turn_s: float
    """The duration of one scheduling pass: the cluster starts such jobs in passes."""
    per_turn: int | None = None
    """The most jobs of a partition that one pass starts; None: not known, or no limit."""
    setting: str = ""
    """The cluster's name of that limit, for people."""

    def within(self, seconds: float) -> int | None:
        """The number of satellites of a partition that can start in this time; None: no limit."""
        if self.per_turn is None:
            return None
        return max(1, int(seconds / max(1.0, self.turn_s))) * self.per_turn


@dataclass(frozen=True, slots=True)
class ClusterTraits:
    """Properties that do not change while the cluster's controller runs. flexod asks for them at its start
    and after it has lost the cluster."""

    name: str
    version: str
    starts: StartBounds
    software: str = ""
    """The name of the software that manages the cluster, for people."""
    satellite_partition: str = ""
    """The partition to which satellites on training nodes are submitted."""
    satellite_qos: str = ""
    """The quality of service of satellites; "": that of their base."""
    resume_command: str = ""
    """The command that resumes a suspended job, to be followed by the job's identifier; for people."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The new priority of a pending job. Of the jobs of one tier, the one with the highest priority starts
    first."""

    job: str
    """`QueuedJob.identifier`."""
    priority: int


@dataclass(frozen=True, slots=True)
class UserShare:
    """A user's fairshare factor: from 0 (has had far more than is due) to 1 (has had nothing)."""

    user: str
    factor: float


@dataclass(frozen=True, slots=True)
class UserShares:
    """The shares of all users, by one poll."""

    shares: tuple[UserShare, ...]
    read_cost_s: float


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job."""

    state: str
    """The cluster's word for the end: COMPLETED, FAILED, TIMEOUT, CANCELLED, REQUEUED, ..."""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: str = ""
    """Exit status and signal, ``1:0``; "" if it is not known."""
    known_by: str = ""
    """The source of the fact, such as ``accounting``."""


class Cluster(Protocol):
    """The abilities of every kind of cluster. All calls block, and each may raise the errors above."""

    @property
    def software(self) -> str:
        """The name of the software that manages the cluster, for people. It is known before the cluster has
        answered."""
        ...

    def traits(self) -> ClusterTraits:
        """The properties that hold while the cluster's controller runs."""
        ...

    def observe(self) -> ClusterState:
        """Poll the cluster for everything that a policy may need."""
        ...

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        """Move the ends of these time limits (`QueuedJob.time_limit_id`) to `seconds_from_now` from now.

        One time limit may be that of several satellites. The method may be called beside other calls, in
        another thread. Raises ActionRefused, naming the refused time limits, if some are refused; the others
        are extended all the same.
        """
        ...

    def cancel(self, job: str) -> None:
        """End a satellite (`QueuedJob.identifier`); no error if it has ended meanwhile."""
        ...


@runtime_checkable
class Allocates(Protocol):
    """A cluster that starts, resizes and preempts jobs as it is told, and needs no satellites for it."""

    def allocate(self, allocations: Sequence[Allocate], drops: Sequence[Drop]) -> None:
        """Give jobs exactly these allocations, all at once, and refuse `drops` for good.

        Raises ImpossiblePlan, and then has changed nothing.
        """
        ...


@runtime_checkable
class SharesGpus(Protocol):
    """A cluster on whose GPUs a second job may run beside the job that holds them."""

    def gpus_of(self, job: str, nodes: Collection[str]) -> frozenset[tuple[str, int]]:
        """The node and the number there of each GPU that a running job (`QueuedJob.identifier`) holds on its
        nodes."""
        ...

    def release(self, job: str) -> None:
        """Let a satellite start that was submitted for shared GPUs, and is held until flexod knows it."""
        ...


@runtime_checkable
class Lends(Protocol):
    """A cluster whose inference servers can be lent to training."""

    def lend(self, nodes: frozenset[str]) -> None:
        """Set the nodes of the borrowed partition to exactly these. A repeated call changes nothing.

        Jobs on removed nodes run on. Raises ActionRefused.
        """
        ...


@runtime_checkable
class Prioritizes(Protocol):
    """A cluster whose pending jobs start in an order that flexod can set, by priorities."""

    def in_band(self, priority: int) -> bool:
        """Whether flexod may have set `priority`: nobody else's priorities are in flexod's band."""
        ...

    def arrange(self, now: Sequence[int]) -> list[int]:
        """The new priorities of jobs in their start order, from the priorities that they have `now`.

        They fall strictly, and all are in flexod's band. As many jobs as possible keep theirs.
        """
        ...

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set the priorities of pending jobs; no error for jobs that have started or ended meanwhile.

        Raises ActionRefused if other jobs are refused; the rest is set all the same.
        """
        ...


@runtime_checkable
class Requeues(Protocol):
    """A cluster that can preempt a running base job."""

    def requeue(self, job: str) -> None:
        """Preempt a base job (`QueuedJob.identifier`): it waits again, as a new job (its restart count
        grows).

        A job that has ended meanwhile stays ended, and is no error. Raises ActionRefused if the job may not
        be requeued.
        """
        ...


@runtime_checkable
class SharesByUser(Protocol):
    """A cluster that keeps the usage of its users."""

    def user_shares(self) -> UserShares:
        """The usage of users, relative to their shares. Raises ActionRefused if the cluster keeps none."""
        ...


@runtime_checkable
class KnowsEnds(Protocol):
    """A cluster that may know how jobs ended."""

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        """The ends of the jobs in `keys`, as far as they are known. May be called beside other calls, as
        `extend` may."""
        ...


def cannot(cluster: Cluster, what: str) -> ActionRefused:
    """The error to raise if a kind lacks a capability. `what`: the capability, as in "lend servers"."""
    return ActionRefused(f"{cluster.software} cannot {what}")
