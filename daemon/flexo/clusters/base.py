"""The interface between the controller and a cluster: a small core, and capabilities that a kind may have.

Every kind of cluster can be observed, and can extend the time limits of satellites and cancel them
(`Cluster`). What else a kind can do are protocols of their own: `Allocates`, `Lends`, `Prioritizes`,
`Requeues`, `SharesByUser`, `KnowsEnds`. A satellite is submitted by its job's leader as the job's user, so
granting is not here. docs/write-a-cluster.md shows a whole kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from flexo.model.nodes import Node, Partition
from flexo.model.plans import Allocate, Drop
from flexo.model.queue import JobKey, QueuedJob
from flexo.model.training import Quota, TrainingJob


class ClusterUnreachable(Exception):
    """The cluster's controller did not answer; the message says what was asked and what came back."""


class MayNotAct(ClusterUnreachable):
    """flexod has been replaced by another one, and may change nothing any more; the message says by which."""


class ActionRefused(Exception):
    """The cluster answered no; the message is its own words with what was asked."""

    def __init__(self, message: str, jobs: frozenset[str] = frozenset()) -> None:
        """`jobs`: of several that were asked for at once, those that are named in the refusal."""
        self.jobs = jobs
        super().__init__(message)


class ImpossiblePlan(Exception):
    """A plan that cannot be carried out, a defect of its policy: the message names job, node and numbers."""


ANSWERED: Final = "done"
FAILED: Final = "failed"
"""The cluster said no, or could say nothing."""
SILENT: Final = "no answer"
"""It did not answer in time, or could not be asked."""

CallEnded = Callable[[str, str, float], None]
"""Is told of each question and command: which, how it ended (ANSWERED, FAILED, SILENT), and the seconds."""
MayAct = Callable[[], None]
"""Is asked before each command that changes something, and while any runs. Raises MayNotAct."""


def nobody_counts(command: str, outcome: str, seconds: float) -> None:
    """The `CallEnded` where nobody wants to know."""


def always() -> None:
    """The `MayAct` of a flexod that has no other beside it."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Where lent servers are found, and who may put them there."""

    partition: str
    edit_command: tuple[str, ...] = ()
    """The words of the command that edits it; (): the cluster's own, with the rights of flexod's account."""
    satellite_partition: str = ""
    """That of satellites on lent servers, where they have one of their own, below that of bases."""
    static: bool = False
    """It holds all inference servers, and is never edited."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """All of them; last the one by which a loan is known, so that an edit cut short is done again."""
        return tuple(name for name in (self.satellite_partition, self.partition) if name)


@dataclass(frozen=True, slots=True)
class Site:
    """What flexod tells a kind of cluster, besides the kind's own settings."""

    borrowed: Borrowed | None = None
    """None: no servers are lent."""
    call_ended: CallEnded = nobody_counts
    may_act: MayAct = always


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One look at the cluster."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[QueuedJob, ...]
    read_cost_s: float
    """Wall time of the reads: what the adaptive interval goes by."""
    training: tuple[TrainingJob, ...] = ()
    """Where the cluster itself knows the jobs that train: all of them, in the order of submission."""
    quotas: tuple[Quota, ...] = ()
    """What tenants are guaranteed."""
    ended: int = 0
    """Jobs of `training` that have ended since the cluster was there."""


@dataclass(frozen=True, slots=True)
class StartBounds:
    """How soon a satellite that was submitted starts at the latest, where there is room for it."""

    turn_s: float
    """The cluster starts such jobs in turns, of which one takes so long."""
    per_turn: int | None = None
    """In one turn at most so many of a partition start; None: not known, or however many."""
    setting: str = ""
    """What the cluster calls that number, for people."""

    def within(self, seconds: float) -> int | None:
        """How many satellites of a partition can start in this time; None: however many."""
        if self.per_turn is None:
            return None
        return max(1, int(seconds / max(1.0, self.turn_s))) * self.per_turn


@dataclass(frozen=True, slots=True)
class ClusterTraits:
    """What does not change while the cluster's controller runs; asked once and after reconnecting."""

    name: str
    version: str
    starts: StartBounds
    software: str = ""
    """What manages the cluster, for people."""
    satellite_partition: str = ""
    """Where satellites on training nodes are submitted."""
    satellite_qos: str = ""
    """The quality of service that they are submitted with; "": the default one of their user."""
    resume_command: str = ""
    """What resumes a suspended job, with its identifier behind it; for people."""


@dataclass(frozen=True, slots=True)
class Priority:
    """What a pending job's priority is to be: of those of one tier the highest starts first."""

    job: str
    """`QueuedJob.name`."""
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
    """Who said so, such as ``accounting``."""


class Cluster(Protocol):
    """What every kind of cluster can do. All calls block; each raises the errors above."""

    @property
    def software(self) -> str:
        """What manages the cluster, for people; known before anybody has answered."""
        ...

    def traits(self) -> ClusterTraits:
        """What holds while the cluster's controller runs."""
        ...

    def observe(self) -> ClusterState:
        """One look at everything that a policy may need."""
        ...

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        """Move the ends of these time limits (`QueuedJob.time_limit_id`) to `seconds_from_now` from now.

        One may be that of several satellites. May be called beside other calls, in another thread. Raises
        ActionRefused, with what was refused, where some are; the others are extended all the same.
        """
        ...

    def cancel(self, job: str) -> None:
        """End a satellite (`QueuedJob.name`); no error if it has ended meanwhile."""
        ...


@runtime_checkable
class Allocates(Protocol):
    """A cluster that starts, resizes and preempts jobs as it is told, and needs no satellites for it."""

    def allocate(self, allocations: Sequence[Allocate], drops: Sequence[Drop]) -> None:
        """Let jobs have exactly this, all at once; refuse `drops` for good.

        Raises ImpossiblePlan, and then has changed nothing.
        """
        ...


@runtime_checkable
class Lends(Protocol):
    """A cluster whose inference servers can be lent to training."""

    def lend(self, nodes: frozenset[str]) -> None:
        """Let the borrowed partition have exactly these nodes; said again, it changes nothing.

        Jobs on nodes that it loses run on. Raises ActionRefused.
        """
        ...


@runtime_checkable
class Prioritizes(Protocol):
    """A cluster that lets flexod say in which order pending jobs start, by numbers that it can set."""

    def in_band(self, priority: int) -> bool:
        """Whether flexod may have set it: nobody else's priorities are in flexod's band."""
        ...

    def arrange(self, now: Sequence[int]) -> list[int]:
        """The priorities of jobs in the order in which they are to start, from those that they have `now`.

        Strictly falling, all in flexod's band. As many as possible keep theirs.
        """
        ...

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set the priorities of pending jobs; no error for those that have started or ended meanwhile.

        Raises ActionRefused where others are refused; the rest is set all the same.
        """
        ...


@runtime_checkable
class Requeues(Protocol):
    """A cluster that can preempt a running base."""

    def requeue(self, job: str) -> None:
        """Preempt a base (`QueuedJob.name`): it waits again, as a new job (its restart count grows).

        A job that has ended meanwhile stays ended, and is no error. Raises ActionRefused where it may not be
        requeued.
        """
        ...


@runtime_checkable
class SharesByUser(Protocol):
    """A cluster that counts what its users have had."""

    def user_shares(self) -> UserShares:
        """What users have had of what is due to them. Raises ActionRefused where nobody keeps that."""
        ...


@runtime_checkable
class KnowsEnds(Protocol):
    """A cluster that may know how jobs ended."""

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        """Of those of `keys` of which it is known. May be called beside other calls, as `extend` may."""
        ...


def cannot(cluster: Cluster, what: str) -> ActionRefused:
    """To be raised where a kind lacks a capability; `what` says which, as in "lend servers"."""
    return ActionRefused(f"{cluster.software} cannot {what}")
