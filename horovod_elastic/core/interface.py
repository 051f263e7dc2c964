"""The interface between a resizable training process and its communication library: prepare, switch, leave.

A core builds the communicator of the next generation beside the present one while training goes on. The core
makes the new communicator the present one at a mini-batch boundary (Amoeba, section 5: the original topology
is not destructed). c10d/ implements the interface with process groups of torch.distributed, native/ with
copies of Horovod's native library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One worker's place in a generation, and the address at which the generation's members meet."""

    generation: int
    """A rising number. The number of an attempt that was given up is not used again."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    """The name that the workers of one node share: their agent's name, not necessarily the machine's."""
    rendezvous_address: str
    """The rendezvous's address, as Rendezvous.address gives it."""
    rendezvous_port: int


class CoreFailed(Exception):
    """A communicator could not be built. The message says why. The present communicator is unchanged."""


class Disagreement(RuntimeError):
    """The ranks requested collectives that do not fit together. The script is at fault; no rank is gone.

    Horovod's Python layer wraps this error: `HorovodInternalError.args[0]`.
    """


class TensorTransport(Protocol):
    """Carries tensors between two members of the present communicator while nothing else is outstanding.

    The training threads of both members call it at the same time, in the same order. A call only begins a
    transfer; the function that it returns waits for the end. Both raise RuntimeError if the transfer fails.
    """

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        """Send a contiguous tensor, in memory or on a GPU, to rank `to`. Do not change it before the end."""

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        """Receive from rank `source` into this contiguous tensor, of the sent tensor's size and type."""


class Core(Protocol):
    """The session's interface to a communication library."""

    process_sets: Sequence[Any]
    """The process sets that the script gave to hvd.init. They hold for the first generation only, because
    Horovod forgets them at a reset."""

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited in collectives, in all."""

    @property
    def outlives(self) -> bool:
        """Whether the present communicator goes on if a rank dies that is not rank 0."""

    def absent(self) -> frozenset[int]:
        """The ranks of the present communicator that have died and are in no average of the last step.

        A step's averages are those between two calls. Without any, those before count.
        """

    def prepare(self, place: RankPlacement) -> None:
        """Build the communicator of `place.generation` beside the present one; blocks until all members did.

        Called in a separate thread, one call at a time. Raises CoreFailed, also if the generation is
        abandoned.
        """

    def switch(self, generation: int) -> None:
        """Make the prepared communicator the present one; the old one is shut down in the background.

        The training thread calls it with nothing outstanding. Raises CoreFailed if the communicator is not
        prepared.
        """

    def abandon(self, generation: int) -> None:
        """Discard this generation's communicator, built or being built, and refuse to build it later.

        Any thread may call it.
        """

    def leave(self) -> None:
        """Leave the present communicator in order. Then there is none. The training thread calls it."""

    def alone(self) -> None:
        """Make a communicator of this process alone the present one. The training thread calls it."""

    def hang_up(self, generation: int) -> None:
        """Break that generation's connections, if it is the present one. All ranks' collectives fail soon.

        Any thread may call it. A late call does not touch later generations.
        """

    def settle(self) -> None:
        """Wait, after `hang_up`, until nothing writes into the training thread's tensors any more.

        The training thread calls it.
        """

    def transport(self) -> TensorTransport | None:
        """The transport between members of the present communicator; None if this library has none."""
