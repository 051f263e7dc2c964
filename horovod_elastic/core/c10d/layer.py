"""The link between Horovod's Python layer and a communicator: names and handles of outstanding works.

A process has one layer, whatever communicator is behind it. Before the first generation there is no
communicator. After hvd.shutdown, the script may not use one until it calls hvd.init again.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from horovod_elastic.core import python_layer
from horovod_elastic.core.c10d import mpi_lib
from horovod_elastic.core.c10d.library import Library
from horovod_elastic.core.c10d.timeline import Timeline
from horovod_elastic.core.c10d.work import Work
from horovod_elastic.core.interface import RankPlacement

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class Communicator(Protocol):
    """The layer's interface to a communicator (communicator.py)."""

    @property
    def place(self) -> RankPlacement:
        """This process's place in the generation."""

    def submit(self, work: Work) -> None:
        """Submit a request.

        Raises ValueError if its name is outstanding, RuntimeError if the communicator is broken.
        """

    def wait(self, work: Work) -> None:
        """Wait until the work is finished. Raises the error that it was finished with."""

    def poll(self, work: Work) -> bool:
        """Whether the work is finished."""

    def process_sets(self) -> Mapping[int, tuple[int, ...]]:
        """The ranks of each process set by the set's number, including the global set."""


@dataclass(slots=True)
class _Outstanding:
    communicator: Communicator
    works: Sequence[Work]
    finish: Callable[[], None] | None
    """The function that the waiting thread calls once all works have succeeded."""


class Layer:
    """The layer of a process (see the module). Made when horovod.torch is imported."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        atexit.register(self.timeline.close)
        self._communicator: Communicator | None = None
        self._shut_down = False
        self._outstanding: dict[int, _Outstanding] = {}
        self._handles = itertools.count(1)
        self._unnamed: dict[tuple[str, int], Iterator[int]] = {}
        self.mpi_lib = mpi_lib.make(self)
        """The stand-in for the module horovod.torch.mpi_lib_v2."""
        self.library = Library(self)
        """The stand-in for the same library opened with ctypes."""

    # --- the communicator -----------------------------------------------------------------------------------

    @property
    def communicator(self) -> Communicator | None:
        """The present communicator, even if the script has called hvd.shutdown."""
        return self._communicator

    @communicator.setter
    def communicator(self, communicator: Communicator | None) -> None:
        self._communicator = communicator
        self._shut_down = False
        self.forget_handles()
        if communicator is not None:
            self.timeline.place(communicator.place.generation, communicator.place.rank)

    def adopt(self, communicator: Communicator | None, process_sets: Sequence[Any]) -> None:
        """See torch_core.FrontEnd.adopt."""
        self.communicator = communicator
        if communicator is not None:
            from horovod.torch import mpi_ops  # imported by now: this object stands in for its library

            python_layer.begin(mpi_ops, process_sets)

    def in_use(self) -> Communicator | None:
        """The communicator that the script may use now, or None."""
        return None if self._shut_down else self._communicator

    def present(self) -> Communicator:
        """The communicator that the script may use now. Raises RuntimeError if there is none."""
        communicator = self.in_use()
        if communicator is None:
            raise RuntimeError(NOT_INITIALIZED)
        return communicator

    def shut_down(self) -> None:
        """Handle the script's call of hvd.shutdown. The process keeps its place among the others."""
        self._shut_down = True
        self.forget_handles()

    def start_again(self) -> bool:
        """Handle the script's call of hvd.init. Returns whether there is a communicator to use."""
        self._shut_down = False
        return self._communicator is not None

    # --- what is outstanding --------------------------------------------------------------------------------

    def name(self, operation: str, given: bytes | str, process_set: int) -> str:
        """The name of a tensor among the ranks. Calls without a name are counted, per operation and set.

        Ranks that make the same calls in a process set count alike, whatever calls they make in other sets.
        """
        if given:
            return f"{operation}.{given.decode() if isinstance(given, bytes) else given}"
        counted = self._unnamed.setdefault((operation, process_set), itertools.count(1))
        return f"{operation}.noname.{next(counted)}"

    def count_anew(self) -> None:
        """Restart the counts of calls without a name, because all ranks are at the same point now."""
        self._unnamed.clear()

    def submit(self, works: Sequence[Work], finish: Callable[[], None] | None = None) -> int:
        """Submit the works of one call and return the call's handle. Raises as Communicator.submit does."""
        communicator = self.present()
        for work in works:
            self.timeline.submitted(work)
            communicator.submit(work)
        handle = next(self._handles)
        self._outstanding[handle] = _Outstanding(communicator, works, finish)
        return handle

    def poll(self, handle: int) -> bool:
        """Whether all works of the call are finished. Raises ValueError for an unknown handle."""
        outstanding = self._outstanding.get(handle)
        if outstanding is None:
            raise ValueError(_unknown(handle))
        return all(outstanding.communicator.poll(work) for work in outstanding.works)

    def wait(self, handle: int) -> None:
        """Wait until all works of the call are finished. Raises the first error of a work.

        Raises ValueError for an unknown handle.
        """
        outstanding = self._outstanding.pop(handle, None)
        if outstanding is None:
            raise ValueError(_unknown(handle))
        error: Exception | None = None
        for work in outstanding.works:
            try:
                outstanding.communicator.wait(work)
            except Exception as raised:
                error = error or raised
        if error is not None:
            raise error
        if outstanding.finish is not None:
            outstanding.finish()

    def forget_handles(self) -> None:
        """Forget all outstanding works, because nobody will wait for them."""
        self._outstanding.clear()
        self.count_anew()


def _unknown(handle: int) -> str:
    return f"Handle {handle} was not created or has been cleared."
