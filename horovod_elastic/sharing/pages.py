"""Defines the shared pages: a fixed layout in one page of memory each, with one writer each.

The writer of a page makes it and seals it (memfd_create(2), F_SEAL_FUTURE_WRITE). So nobody else can
write it, whoever gets its descriptor, and no page can be cut short under a reader. Times are nanoseconds
of CLOCK_MONOTONIC, which all processes of a node share. Words are written one by one. A reader may see
an older word beside a newer one, and no rule depends on two of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import fcntl
import mmap
import os
import time
from collections.abc import Iterator

SIZE = 4096
VERSION = 0x464C5801
RING = 128
"""Durations that a ring keeps. A reader that comes in time sees all of them."""
_SEAL_FUTURE_WRITE = 0x10
_NEEDED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_RINGS = 128
"""The index of the first 64-bit word of the rings."""


class GateState(enum.IntEnum):
    """What the opportunistic job may do: nothing; work while the guarantee job does not; work; only end."""

    CLOSED = 0
    GAPS = 1
    OPEN = 2
    EVICTED = 3


class NoPage(ValueError):
    """A descriptor is not that of a sealed page."""


def now() -> int:
    """The time of the pages, in nanoseconds."""
    return time.monotonic_ns()


class Page:
    """One page: `halves` are its 32-bit words, `words` its 64-bit ones.

    `words[0]` holds the version (its lower half) and the word that others wait for (its upper half).
    """

    def __init__(self, descriptor: int, writable: bool) -> None:
        self.descriptor = descriptor
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, SIZE, access=access)
        self.halves = memoryview(self._map).cast("I")
        self.words = memoryview(self._map).cast("Q")
        self.address = _address(self._map, writable) + 4

    @classmethod
    def make(cls, name: str) -> Page:
        """A new page that only the caller can write."""
        descriptor = os.memfd_create(f"flexo-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, SIZE)
        page = cls(descriptor, writable=True)
        page.halves[0] = VERSION
        page.words[1] = now()
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _NEEDED | _SEAL_FUTURE_WRITE)
        return page

    @classmethod
    def of(cls, descriptor: int) -> Page:
        """Another process's page, to read. Takes over `descriptor`. Raises NoPage."""
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _NEEDED == _NEEDED
            if not sealed or os.fstat(descriptor).st_size != SIZE:
                raise NoPage("a page that is not sealed, or has another size")
            page = cls(descriptor, writable=False)
        except (OSError, NoPage) as error:
            os.close(descriptor)
            raise NoPage(f"the descriptor is not that of a page: {error}") from error
        if page.halves[0] != VERSION:
            page.close()
            raise NoPage("the page was written by another version of flexo")
        return page

    def close(self) -> None:
        """Give the memory back. Nobody may use the page after that."""
        self.halves.release()
        self.words.release()
        with contextlib.suppress(BufferError):  # somebody still holds a view: the memory goes with it
            self._map.close()
        os.close(self.descriptor)

    @property
    def signal(self) -> int:
        """The word that others wait for."""
        return self.halves[1]

    def beat(self) -> None:
        """Say that the writer lives."""
        self.words[1] = now()

    def age_s(self) -> float:
        """Seconds since the writer last said that it lives."""
        return max(0.0, (now() - self.words[1]) / 1e9)


def _address(mapped: mmap.mmap, writable: bool) -> int:
    """The address of a mapping. ctypes wants a writable buffer, numpy is not there: the C API tells."""
    if writable:
        return ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    view = _PyBuffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    if get(ctypes.py_object(mapped), ctypes.byref(view), 0) != 0:
        raise BufferError("a mapping without an address")
    address = int(view.address or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address


class _PyBuffer(ctypes.Structure):
    """The beginning of CPython's Py_buffer, with room for the rest."""

    _fields_ = (("address", ctypes.c_void_p), ("rest", ctypes.c_char * 248))


class Ring:
    """A ring of durations in a page: how many there were, and the last RING of them."""

    def __init__(self, page: Page, count: int, which: int) -> None:
        self._words, self._count, self._first = page.words, count, _RINGS + which * RING

    @property
    def count(self) -> int:
        """How many durations there were."""
        return self._words[self._count]

    def add(self, nanoseconds: int) -> None:
        """Add a duration (writer)."""
        count = self._words[self._count]
        self._words[self._first + count % RING] = nanoseconds
        self._words[self._count] = count + 1

    def since(self, count: int) -> Iterator[float]:
        """The durations after the first `count`, in seconds, as far as the ring has them still."""
        present = self.count
        for index in range(max(count, present - RING), present):
            yield self._words[self._first + index % RING] / 1e9


class _Word:
    """A 64-bit word of a page, to read. Its writer has the index."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, told: _Told, _: type) -> int:
        return told.page.words[self._index]


class _Told:
    """What a page tells, by the names of its words."""

    def __init__(self, page: Page) -> None:
        self.page = page


class GuaranteePage(_Told):
    """What a guarantee job tells: whether its work is in flight, how long steps and gaps take, its
    memory.
    """

    IN_FLIGHT, BEGAN, ENDED, STEPS, GAPS, MEMORY, PEAK, WORKED = 1, 2, 3, 4, 5, 6, 7, 8

    began = _Word(BEGAN)
    """When the last flight began."""
    ended = _Word(ENDED)
    """When the last flight ended."""
    worked = _Word(WORKED)
    """Nanoseconds in which its work was in flight."""
    memory = _Word(MEMORY)
    """Bytes that it holds."""
    peak = _Word(PEAK)
    """The most bytes that it held."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self.cycles = Ring(page, self.STEPS, 0)
        self.gaps = Ring(page, self.GAPS, 1)

    @property
    def in_flight(self) -> bool:
        """Whether its work is on the GPU."""
        return self.page.halves[self.IN_FLIGHT] != 0


class OpportunisticPage(_Told):
    """What an opportunistic job tells: whether it waits, how often it passed the gate, its memory and
    leaks.

    `STARTED`: whether it uses the GPU; before that there is nothing that a gate could hold back.
    """

    WAITING, PASSES, STEPS, LEAKS, WORKED, MEMORY, MOVED, STARTED = 1, 2, 3, 4, 5, 6, 7, 8

    passes = _Word(PASSES)
    """How often it reached the gate and went on."""
    steps = _Word(STEPS)
    """Steps of optimizers."""
    worked = _Word(WORKED)
    """Nanoseconds in which it did not wait at the gate."""
    memory = _Word(MEMORY)
    """Bytes that it holds on the GPU."""
    moved = _Word(MOVED)
    """Bytes of live tensors that it moved to the host."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self.leaks = Ring(page, self.LEAKS, 0)

    @property
    def waiting(self) -> bool:
        """Whether it stands at the gate."""
        return self.page.halves[self.WAITING] != 0

    @property
    def started(self) -> bool:
        """Whether it uses the GPU."""
        return self.page.words[self.STARTED] != 0


class GatePage(_Told):
    """What the coordinator orders: the gate's state, the memory limit, and which gaps may be filled.

    `EPOCH` rises with each change of the limit. `SHARED`: whether anybody shares the GPU with the
    reader.
    """

    STATE, EPOCH, LIMIT, PATIENCE, EVERY, SHARED = 1, 2, 3, 4, 5, 6

    epoch = _Word(EPOCH)
    """How often the memory limit changed."""
    limit = _Word(LIMIT)
    """Bytes that the opportunistic job may hold."""
    patience = _Word(PATIENCE)
    """Nanoseconds that a gap must have lasted before it may be filled."""
    every = _Word(EVERY)
    """1: each gap may be filled; n: every n-th gap."""

    @property
    def state(self) -> GateState:
        """The gate's state."""
        return GateState(self.page.halves[self.STATE])

    @property
    def shared(self) -> bool:
        """Whether anybody shares the GPU with the reader."""
        return self.page.words[self.SHARED] != 0
