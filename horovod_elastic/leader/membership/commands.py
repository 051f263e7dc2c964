"""What membership decides: the commands that its leader carries out, and a worker's place in a generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """What Horovod calls rank, size, local and cross ranks: one worker's place in a generation."""

    worker_id: str
    agent: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker process."""

    worker_id: str
    agent: str
    slot: int
    newcomer: bool
    outlook: Place


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL a worker process."""

    worker_id: str
    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Tell everybody in `places` to build the communicator of `generation`."""

    generation: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """That generation will not be."""

    generation: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask for the promise not to pass boundary `at` of the generation; at = 0: just where they are."""

    generation: int
    at: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """They may pass boundary `at`, or (at = 0) any."""

    generation: int
    at: int
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What one worker is told when the word is given."""

    worker_id: str
    at: int = 0
    """The boundary at which it switches; 0: it waits, and goes at once."""
    leave: str = ""
    """Why it ends there instead of going on."""
    aside: bool = False
    """It steps out there, and waits to be called back."""


@dataclass(frozen=True, slots=True)
class Go:
    """The word: `generation` begins."""

    generation: int
    sync: bool
    """Whether states are handed over: somebody is new, or the generation before broke."""
    commits: int
    """Mini-batches committed by that state, as far as is known."""
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """Somebody of `generation` is gone: the others are to hang up."""

    generation: int
    worker_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell a worker that waits to exit with 0."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Nothing is left to do on this agent's node."""

    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    exit_code: int
    why: str


Command = Start | Kill | Prepare | Abandon | Propose | Withdraw | Go | Broken | Leave | Dismiss | End
