"""Where Horovod's Python layer and a communicator meet: what is outstanding, under which name and handle.

There is one layer a process, whatever communicator is behind it: none before the first generation, and after
hvd.shutdown none that the script may use until it calls hvd.init again.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from horovod_elastic.core.c10d import mpi_lib
from horovod_elastic.core.c10d.library import Library
from horovod_elastic.core.c10d.timeline import Timeline
from horovod_elastic.core.c10d.work import Work
from horovod_elastic.core.interface import Place

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class Communicator(Protocol):
    """What the layer needs of one (communicator.py)."""

    @property
    def place(self) -> Place:
        """This process's."""

    def submit(self, work: Work) -> None:
        """Hand a request in. Raises ValueError if its name is outstanding, RuntimeError if it is broken."""

    def wait(self, work: Work) -> None:
        """Until it is finished. Raises the error it was finished with."""

    def poll(self, work: Work) -> bool:
        """Whether it is finished."""

    def process_sets(self) -> Mapping[int, tuple[int, ...]]:
        """Ranks by number, those of the global set too."""


@dataclass(slots=True)
class _Outstanding:
    communicator: Communicator
    works: Sequence[Work]
    finish: Callable[[], None] | None
    """What is left to do when they are finished well."""


class Layer:
    """See the module. Made when horovod.torch is imported."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        atexit.register(self.timeline.close)
        self._communicator: Communicator | None = None
        self._shut_down = False
        self._outstanding: dict[int, _Outstanding] = {}
        self._handles = itertools.count(1)
        self._unnamed: dict[tuple[str, int], Iterator[int]] = {}
        self.mpi_lib = mpi_lib.make(self)
        """Stands in for the module horovod.torch.mpi_lib_v2."""
        self.library = Library(self)
        """Stands in for the same library opened with ctypes."""

    # --- the communicator -----------------------------------------------------------------------------------

    @property
    def communicator(self) -> Communicator | None:
        """The present one, whether or not the script has called hvd.shutdown."""
        return self._communicator

    @communicator.setter
    def communicator(self, communicator: Communicator | None) -> None:
        self._communicator = communicator
        self._shut_down = False
        self.forget_handles()
        if communicator is not None:
            self.timeline.place(communicator.place.generation, communicator.place.rank)

    def in_use(self) -> Communicator | None:
        """The one that the script uses, if it does."""
        return None if self._shut_down else self._communicator

    def present(self) -> Communicator:
        """The same. Raises RuntimeError if there is none."""
        communicator = self.in_use()
        if communicator is None:
            raise RuntimeError(NOT_INITIALIZED)
        return communicator

    def shut_down(self) -> None:
        """The script has called hvd.shutdown. The process keeps its place among the others."""
        self._shut_down = True
        self.forget_handles()

    def start_again(self) -> bool:
        """The script has called hvd.init. Whether there is a communicator to use."""
        self._shut_down = False
        return self._communicator is not None

    # --- what is outstanding --------------------------------------------------------------------------------

    def name(self, operation: str, given: bytes | str, process_set: int) -> str:
        """What a tensor is called among the ranks. Without a name, calls of one kind are counted.

        Ranks that make the same calls in a process set count alike, whatever they do in others.
        """
        if given:
            return f"{operation}.{given.decode() if isinstance(given, bytes) else given}"
        counted = self._unnamed.setdefault((operation, process_set), itertools.count(1))
        return f"{operation}.noname.{next(counted)}"

    def count_anew(self) -> None:
        """All ranks are at the same point, however many calls each of them has made."""
        self._unnamed.clear()

    def submit(self, works: Sequence[Work], finish: Callable[[], None] | None = None) -> int:
        """Hand in what one call asks for. Returns its handle. Raises as Communicator.submit does."""
        communicator = self.present()
        for work in works:
            self.timeline.submitted(work)
            communicator.submit(work)
        handle = next(self._handles)
        self._outstanding[handle] = _Outstanding(communicator, works, finish)
        return handle

    def poll(self, handle: int) -> bool:
        """Whether `wait` would not block. Raises ValueError for an unknown handle."""
        outstanding = self._outstanding.get(handle)
        if outstanding is None:
            raise ValueError(_unknown(handle))
        return all(outstanding.communicator.poll(work) for work in outstanding.works)

    def wait(self, handle: int) -> None:
        """Until all of it is finished. Raises the first error it was finished with."""
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
        """Nobody will wait for what is outstanding."""
        self._outstanding.clear()
        self.count_anew()


def _unknown(handle: int) -> str:
    return f"Handle {handle} was not created or has been cleared."
