"""The seam between a resizable training process and its communication library: prepare, switch, leave.

A core builds the communicator of the next generation beside the present one while training goes on, and makes
it the present one at a mini-batch boundary (Amoeba, section 5: the original topology is not destructed).
c10d/ does it with process groups of torch.distributed, native/ with copies of Horovod's native library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's place in a generation, and where its members meet."""

    generation: int
    """Counts up; the number of an attempt that was given up is not used again."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    """The name that workers of one node share: an agent's, not necessarily the machine's."""
    rendezvous_address: str
    """As Rendezvous.address gives it."""
    rendezvous_port: int


class CoreFailed(Exception):
    """A communicator could not be built; its message says why. The present one is as it was."""


class Disagreement(RuntimeError):
    """The ranks asked for collectives that do not fit together: the script's fault, nobody is gone.

    Horovod's Python layer wraps it: `HorovodInternalError.args[0]`.
    """


class Courier(Protocol):
    """Carries tensors between two members of the present communicator while nothing else is outstanding.

    Called by the training threads of both at once, in the same order. Both calls only begin it; what they
    return waits for the end. All of these raise RuntimeError if it fails.
    """

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        """To that rank: a contiguous tensor, in memory or on a GPU. Until the end it must not be changed."""

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        """From that rank, into this contiguous tensor of the same size and type."""


class Core(Protocol):
    """What a session needs of a communication library."""

    process_sets: Sequence[Any]
    """Given to hvd.init by the script: for the first generation, as Horovod forgets them at a reset."""

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited in collectives, in all."""

    def prepare(self, place: Place) -> None:
        """Build the communicator of `place.generation` beside the present one; blocks until all members did.

        Called in a thread of its own, one at a time. Raises CoreFailed, also when it is abandoned.
        """

    def switch(self, generation: int) -> None:
        """Make the prepared communicator the present one; the old one is shut down in the background.

        Called by the training thread with nothing outstanding. Raises CoreFailed if it is not prepared.
        """

    def abandon(self, generation: int) -> None:
        """Throw away what is being built, was built or will be asked for this generation. Any thread."""

    def leave(self) -> None:
        """Go out of the present communicator in order; then there is none. Called by the training thread."""

    def alone(self) -> None:
        """Make a communicator of this process alone the present one. Called by the training thread."""

    def hang_up(self, generation: int) -> None:
        """Break that generation's connections, if it is the present one: everybody's collectives fail soon.

        Any thread. The word may be late: of what came after that generation nothing is touched.
        """

    def settle(self) -> None:
        """After `hang_up`, by the training thread: wait until nothing writes into its tensors any more."""

    def courier(self) -> Courier | None:
        """Between members of the present communicator; None if this library has no such thing."""
