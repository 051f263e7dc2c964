"""The decisions of membership: the commands that the leader carries out, and a worker's ranks in a
generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """One worker's place in a generation: Horovod's rank, size, local and cross ranks."""

    worker_id: str
    agent: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    slot: int = 0
    """The slot of the agent that carries the worker; virtual workers share slots."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker process."""

    worker_id: str
    agent: str
    slot: int
    newcomer: bool
    projected_rank: RankAssignment
    unit: str = ""
    """The name of the worker's unit, for the workers that meet in it; "": each worker is a unit."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL a worker process."""

    worker_id: str
    agent: str
    why: str
    quiet: bool = False
    """Whether the user is told of the reason otherwise."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Say that a worker has failed, and that the job goes on."""

    node: str
    exit_code: int
    trained: bool
    """Whether it has trained; else it is a new worker, or a founder."""
    again: bool
    """Whether it is started again; else its place stays empty."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Tell all workers in `places` to build the communicator of `generation`."""

    generation: int
    places: tuple[RankAssignment, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Tell workers that `generation` is given up."""

    generation: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask workers to promise not to pass boundary `at` of the generation; at = 0: ask only where they are."""

    generation: int
    at: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Release workers from their promise: they may pass boundary `at`, or (at = 0) any."""

    generation: int
    at: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The message to one worker when the next generation begins."""

    worker_id: str
    at: int = 0
    """The boundary at which the worker switches; 0: it waits, and goes at once."""
    leave: str = ""
    """Why the worker ends at that boundary; "": it goes on."""
    aside: bool = False
    """Whether the worker steps out at that boundary, and waits for a later generation."""


@dataclass(frozen=True, slots=True)
class Go:
    """Begin `generation`: all workers are told to switch."""

    generation: int
    sync: bool
    """Whether states are handed over: a worker is new, or the generation before broke."""
    commits: int
    """Number of mini-batches that this state has committed, as far as is known."""
    calls: tuple[Call, ...]
    parks: bool = False
    """Whether training pauses: rank 0 parks the state in the base, and all workers leave."""
    resumes: bool = False
    """Whether training goes on from the parked state."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Tell the other members that `generation` is broken, so that they end their collectives."""

    generation: int
    worker_ids: tuple[str, ...]
    why: str


UNLIKE = "its models or optimizers are not those of the others"
ODD = "a collective failed after it had joined, and no worker was lost: it may act unlike the others"
REFUSALS = UNLIKE, ODD
"""Reasons to leave that the job's output tells of: the job cannot use what it has been given."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """Training pauses without its workers, which are lost. It goes on from the newest parked state."""

    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell a worker that waits to exit with 0."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Tell an agent that nothing is left to do on its node."""

    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """End the job."""

    exit_code: int
    why: str


Command = (
    Start
    | Kill
    | WorkerFailed
    | Prepare
    | Abandon
    | Propose
    | Withdraw
    | Go
    | Broken
    | GoBack
    | Leave
    | Dismiss
    | End
)
