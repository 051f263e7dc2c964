"""The core on Horovod: two copies of its native library take turns (see interface.py for what a core does).

While one copy trains, a thread initialises the other with the next generation's place. The switch is two
assignments in horovod.torch.mpi_ops. The copy that was left is shut down in the background and is the spare
of the next change. When a build fails, a native thread of the copy throws. Only that thread ends. The copy is
given up for good, because nobody knows what it still holds.

A thread that waits for a collective naps. Horovod's own wait yields the processor in a loop. If training
workers, warming workers and data loaders share CPU cores, that loop takes the cores from the very worker that
the thread waits for, for seconds at worst.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import enum
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from horovod_elastic.core import connections, meeting, python_layer
from horovod_elastic.core.interface import CoreFailed, RankPlacement
from horovod_elastic.core.native import native_copies, native_threads
from horovod_elastic.core.native.native_copies import NativeCopy
from horovod_elastic.rendezvous import Rendezvous

SHUTDOWN_S = 5.0
"""Limit of a wait for a shutdown, in seconds. It takes some milliseconds, unless a member is stopped."""
ABANDONED_S = 5.0
"""Seconds to wait for the end of an abandoned build. The native core asks a closed rendezvous three times
within 1.5 s before it gives up."""
SHORTEST_NAP_S, LONGEST_NAP_S = 50e-6, 1e-3
NAP_OF_WAIT = 0.1
"""The next nap of a thread that waits in a collective, as a part of its wait so far. The thread notices the
end late by one nap at most."""
_ALONE = "alone"
_NOWHERE = RankPlacement(0, 0, 0, 0, 0, 0, 0, "", "", 0)


class _State(enum.Enum):
    IDLE = "not initialised: can be built"
    BUILDING = "being initialised"
    PREPARED = "initialised, waits for its switch"
    PRESENT = "trains"
    RETIRING = "being shut down"
    LOST = "given up for good"


class _Copy:
    def __init__(self, native: NativeCopy) -> None:
        self.native = native
        self.state = _State.IDLE
        self.sockets: connections.Sockets = {}
        self.generation = 0
        """The generation that the copy was switched to last; negative if this process was alone in it."""


@dataclass(eq=False, slots=True)
class _Build:
    place: RankPlacement
    copy: _Copy
    before: connections.Sockets
    over: bool = False
    """Whether the build's native thread has ended, successfully or not."""
    failure: str = ""


class HorovodCore:
    """The Core on Horovod (see the module). Made once, before Horovod is first initialised.

    `mpi_ops`: horovod.torch.mpi_ops.
    """

    def __init__(self, mpi_ops: ModuleType) -> None:
        self.waited_s = 0.0
        self.process_sets: Sequence[Any] = ()
        """See Core.process_sets."""
        self._mpi_ops = mpi_ops
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._copies: list[_Copy] = []
        self._present: _Copy | None = None
        self._prepared: _Build | None = None
        self._abandoned: set[int] = set()
        self._alone = 0
        # The native core reads these variables in its own threads. So later only their values change, never
        # the table of names.
        for name in python_layer.VARIABLES:
            os.putenv(name, os.environ.get(name, ""))
        self._original = native_copies.first(mpi_ops, _tag(0))
        self._build = _Build(_NOWHERE, self._adopt(self._original), {}, over=True)
        """The latest build."""
        with contextlib.suppress(
            CoreFailed
        ):  # the first change reports the error; loading the copy now delays no batch
            self._adopt_another()
        self._terminations = native_threads.Terminations(self._may_end_alone)
        atexit.register(self._at_exit)

    # --- building -----------------------------------------------------------------------------------------

    @property
    def outlives(self) -> bool:
        """See Core.outlives."""
        return False

    def absent(self) -> frozenset[int]:
        """See Core.absent."""
        return frozenset()

    def prepare(self, place: RankPlacement) -> None:
        """See Core.prepare."""
        build = self._begin(place)
        # Not threading.Thread: threading would list the thread for ever if it never comes back.
        _thread.start_new_thread(self._initialize, (build,))
        limit = time.monotonic() + 2 * python_layer.gloo_timeout_s() + 10
        with self._changed:
            while not (build.over or build.failure):
                if not self._changed.wait(limit - time.monotonic()):
                    build.failure = "it took too long"
            if build.failure:
                raise CoreFailed(f"generation {place.generation} was not built: {build.failure}")

    def _begin(self, place: RankPlacement) -> _Build:
        """Wait until no other build reads the variables HOROVOD_*, then reserve a copy for this build."""
        with self._changed:
            limit = time.monotonic() + ABANDONED_S
            while not self._build.over:
                if not self._build.failure:
                    raise CoreFailed(f"generation {self._build.place.generation} is being built")
                if time.monotonic() >= limit:
                    raise CoreFailed("an attempt that was abandoned has not come to its end")
                connections.shut_down_unfinished(self._build.before)
                self._changed.wait(0.1)
            self._throw_away_prepared()
            if place.generation in self._abandoned:
                raise CoreFailed(f"generation {place.generation} was abandoned")
            copy = self._spare()
            copy.state = _State.BUILDING
            self._build = _Build(place, copy, connections.open_now())
            return self._build

    def _spare(self) -> _Copy:
        """A copy to build on. Waits for a copy that is being shut down rather than load a third."""
        limit = time.monotonic() + SHUTDOWN_S
        while True:
            if idle := [copy for copy in self._copies if copy.state is _State.IDLE]:
                return idle[0]
            being_shut_down = any(copy.state is _State.RETIRING for copy in self._copies)
            if not (being_shut_down and self._changed.wait(max(0.0, limit - time.monotonic()))):
                return self._adopt_another()

    def _adopt_another(self) -> _Copy:
        return self._adopt(native_copies.another(self._original, _tag(len(self._copies))))

    def _adopt(self, native: NativeCopy) -> _Copy:
        module = native.module
        wait = self._napping(module.horovod_torch_poll, module.horovod_torch_wait_and_clear)
        module.horovod_torch_wait_and_clear = wait  # type: ignore[attr-defined]
        copy = _Copy(native)
        self._copies.append(copy)
        return copy

    def _napping(self, poll: Callable[[int], int], wait: Callable[[int], None]) -> Callable[[int], None]:
        def nap_and_wait(handle: int) -> None:
            waited = 0.0
            began = time.perf_counter()
            try:
                while not poll(handle):
                    time.sleep(min(max(SHORTEST_NAP_S, NAP_OF_WAIT * waited), LONGEST_NAP_S))
                    waited = time.perf_counter() - began
                wait(handle)
            finally:
                self.waited_s += time.perf_counter() - began

        return nap_and_wait

    def _initialize(self, build: _Build) -> None:
        """Initialise the build's copy. The separate thread never returns if the native core throws."""
        native_threads.name_this_thread(build.copy.native.tag)
        if meeting.meet(build.place, lambda: bool(build.failure)) is None:
            with self._changed:
                build.over = True
                build.failure = build.failure or "its rendezvous was closed"
                build.copy.state = _State.IDLE
                self._changed.notify_all()
            return
        for name, value in python_layer.variables(build.place).items():
            os.putenv(name, value)
        sets = [] if build.place.generation < 0 else [each.ranks for each in self.process_sets]
        up = build.copy.native.initialize(sets)
        with self._changed:
            build.over = True
            if not up:
                build.failure = build.failure or "Horovod could not be initialised (its log says why)"
                build.copy.state = _State.LOST
            elif build.failure:
                self._retire(build.copy)
            else:
                build.copy.sockets = connections.core_since(build.before)
                build.copy.state = _State.PREPARED
                self._prepared = build
            self._changed.notify_all()

    def _may_end_alone(self, tag: str) -> bool:
        """Whether the native thread that threw and calls this may end alone. `tag`: the thread's name.

        A thread of the present communicator may not: its failure concerns the script.
        """
        if os.getpid() != self._pid:
            return False
        with self._changed:
            copy = next((copy for copy in self._copies if copy.native.tag == tag), None)
            if copy is None or copy.state is _State.PRESENT:
                return False
            copy.state = _State.LOST
            if self._build.copy is copy:
                self._build.over = True
                self._build.failure = self._build.failure or "a member is gone, or Gloo's time was up"
            self._changed.notify_all()
            return True

    def abandon(self, generation: int) -> None:
        """See Core.abandon."""
        with self._changed:
            self._abandoned.add(generation)
            if self._build.place.generation == generation and not self._build.over:
                self._build.failure = self._build.failure or "it was abandoned"
                connections.shut_down_unfinished(self._build.before)
                self._changed.notify_all()
            if self._prepared is not None and self._prepared.place.generation == generation:
                self._throw_away_prepared()

    def _throw_away_prepared(self) -> None:
        if self._prepared is not None:
            unwanted, self._prepared = self._prepared.copy, None
            self._retire(unwanted)

    # --- switching ----------------------------------------------------------------------------------------

    def switch(self, generation: int) -> None:
        """See Core.switch."""
        with self._changed:
            prepared = self._prepared
            if prepared is None or prepared.place.generation != generation:
                raise CoreFailed(f"generation {generation} is not prepared")
            self._prepared = None
            if prepared.copy.state is not _State.PREPARED:
                raise CoreFailed(f"generation {generation} broke before it began")
            prepared.copy.state = _State.PRESENT
            prepared.copy.generation = generation
            self._present, old = prepared.copy, self._present
        self._install(prepared.copy.native)
        if generation < 0:
            python_layer.begin(self._mpi_ops)
        else:  # a newcomer that warms up alone keeps the variables that it was started with
            python_layer.begin(self._mpi_ops, self.process_sets)
            self.process_sets = ()
            os.environ.update(python_layer.variables(prepared.place))
        if old is not None:
            self._retire(old)

    def _install(self, native: NativeCopy) -> None:
        """Point Horovod's Python layer at this copy. The layer reaches it through these two names only."""
        self._mpi_ops.mpi_lib = native.module  # type: ignore[attr-defined]
        self._mpi_ops._basics.MPI_LIB_CTYPES = native.library

    def alone(self) -> None:
        """See Core.alone."""
        with self._changed:
            self._alone -= 1
            generation = self._alone
        server = Rendezvous("127.0.0.1", {f"{_ALONE}:0": "0,1,0,1,0,1"}, secrets.token_hex(16))
        try:
            self.prepare(RankPlacement(generation, 0, 1, 0, 1, 0, 1, _ALONE, server.address, server.port))
            self.switch(generation)
        finally:
            server.close()

    def leave(self) -> None:
        """See Core.leave."""
        with self._changed:
            old, self._present = self._present, None
        if old is not None:
            self._retire(old)
            self._wait_until(lambda: old.state is not _State.RETIRING, SHUTDOWN_S)

    def hang_up(self, generation: int) -> None:
        """See Core.hang_up."""
        with self._changed:
            present = self._present
            sockets = present.sockets if present is not None and present.generation == generation else {}
        connections.shut_down(sockets)

    def settle(self) -> None:
        """Do nothing: all collectives have failed by the time that the training thread learns of it."""

    def transport(self) -> None:
        """None, because Horovod's native library has no messages between two members."""

    # --- shutting down ------------------------------------------------------------------------------------

    def _retire(self, copy: _Copy) -> None:
        with self._changed:
            if copy.state is _State.LOST:
                return
            copy.state = _State.RETIRING
        _thread.start_new_thread(self._shut_down, (copy,))

    def _shut_down(self, copy: _Copy) -> None:
        native_threads.name_this_thread(copy.native.tag)
        copy.native.shut_down()
        # Horovod leaves half of its connections open and closes them, 10 ms each, when initialised again.
        connections.shut_down(copy.sockets)
        with self._changed:
            if copy.state is _State.RETIRING:
                copy.state = _State.IDLE
            self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool], at_most_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, at_most_s)

    def _at_exit(self) -> None:
        """Leave all communicators in order. A copy that does not end in time must not keep the process."""
        if os.getpid() != self._pid:
            # A process that the training process forked has the core's memory, but none of its threads.
            native_threads.exit_without_destructors()
            return
        self.abandon(self._build.place.generation)
        if self._present is not None:
            self._retire(self._present)
        self._wait_until(lambda: all(copy.state is not _State.RETIRING for copy in self._copies), SHUTDOWN_S)
        if all(copy.state is _State.IDLE for copy in self._copies):
            self._terminations.close()
        else:
            self._terminations.close_and_block()
            native_threads.exit_without_destructors()


def _tag(number: int) -> str:
    return f"flexo-core-{number}"
