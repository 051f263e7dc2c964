"""The core on torch.distributed: the next generation's communicator is an object beside the present one."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horovod_elastic.core import python_layer
from horovod_elastic.core.c10d.communicator import Communicator
from horovod_elastic.core.c10d.timeline import Timeline
from horovod_elastic.core.interface import CoreFailed, RankPlacement, TensorTransport

BREAKING_S = 2.0
"""Seconds that the end of the process waits for a build under way, which it breaks."""
_ALONE = RankPlacement(-1, 0, 1, 0, 1, 0, 1, "", "", 0)


class FrontEnd(Protocol):
    """The script's side of the core: Horovod's layer (layer.py), or torch.distributed (worker/ddp)."""

    @property
    def timeline(self) -> Timeline:
        """Where communicators record what they do."""

    def adopt(self, communicator: Communicator | None, process_sets: Sequence[Any]) -> None:
        """Use this communicator from now on; None: there is none any more. The training thread calls it.

        `process_sets`: the script's process sets that are part of the communicator.
        """


class TorchCore:
    """The Core on torch.distributed. Made once, when `front` is ready to adopt communicators.

    `sets_of`: the sets of ranks of every generation with this number of workers, beside the script's.
    """

    def __init__(
        self, front: FrontEnd, sets_of: Callable[[int], Sequence[Sequence[int]]] = lambda _: ()
    ) -> None:
        self.process_sets: Sequence[Any] = ()
        self._sets_of = sets_of
        self._front = front
        self._present: Communicator | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._building: Communicator | None = None
        self._nothing_building = threading.Event()
        self._nothing_building.set()
        self._prepared: Communicator | None = None
        self._abandoned: set[int] = set()
        self._waited_before_s = 0.0
        """Seconds that this process has waited in communicators that it has left."""
        self._going: list[threading.Thread] = []
        atexit.register(self._at_exit)

    @property
    def waited_s(self) -> float:
        """See Core.waited_s."""
        present = self._present
        return self._waited_before_s + (0.0 if present is None else present.waited_s)

    @property
    def outlives(self) -> bool:
        """See Core.outlives."""
        present = self._present
        return present is not None and present.outlives

    def absent(self) -> frozenset[int]:
        """See Core.absent."""
        return frozenset() if self._present is None else self._present.absent()

    # --- building -------------------------------------------------------------------------------------------

    def prepare(self, place: RankPlacement) -> None:
        """See Core.prepare."""
        sets, present = [each.ranks for each in self.process_sets], self._present
        sets += self._sets_of(place.size)
        communicator = Communicator(place, sets, self._front.timeline, present)
        with self._lock:
            if place.generation in self._abandoned:
                raise CoreFailed(f"generation {place.generation} was abandoned")
            if self._building is not None:
                raise CoreFailed(f"generation {self._building.place.generation} is being built")
            unwanted, self._prepared = self._prepared, None
            self._building = communicator
            self._nothing_building.clear()
        self._throw_away(unwanted)
        try:
            communicator.build()
        finally:
            with self._lock:
                self._building = None
            self._nothing_building.set()
        with self._lock:
            if place.generation not in self._abandoned:
                self._prepared = communicator
                return
        self._throw_away(communicator)
        raise CoreFailed(f"generation {place.generation} was abandoned")

    def abandon(self, generation: int) -> None:
        """See Core.abandon."""
        with self._lock:
            self._abandoned.add(generation)
            building, unwanted = self._building, None
            if self._prepared is not None and self._prepared.place.generation == generation:
                unwanted, self._prepared = self._prepared, None
        if building is not None and building.place.generation == generation:
            building.break_("it was abandoned")
        self._throw_away(unwanted)

    def _throw_away(self, communicator: Communicator | None) -> None:
        if communicator is not None:
            communicator.break_("it was abandoned")
            self._in_background(communicator)

    # --- switching ------------------------------------------------------------------------------------------

    def switch(self, generation: int) -> None:
        """See Core.switch."""
        with self._lock:
            prepared = self._prepared
            if prepared is None or prepared.place.generation != generation:
                raise CoreFailed(f"generation {generation} is not prepared")
            self._prepared = None
        if prepared.is_broken():
            self.process_sets = ()  # other ranks may have entered it, and have none for the next generation
            self._in_background(prepared)
            raise CoreFailed(f"generation {generation} broke before it began")
        self._install(prepared)
        os.environ.update(python_layer.variables(prepared.place))

    def alone(self) -> None:
        """See Core.alone."""
        communicator = Communicator(_ALONE, (), self._front.timeline)
        communicator.build()
        self._install(communicator)

    def _install(self, communicator: Communicator) -> None:
        if self._present is not None:
            self._waited_before_s += self._present.waited_s
            self._in_background(self._present)
        sets, self.process_sets = self.process_sets, ()
        self._present = communicator
        self._front.adopt(communicator, sets)

    def leave(self) -> None:
        """See Core.leave."""
        present, self._present = self._present, None
        self._front.adopt(None, ())
        if present is not None:
            self._waited_before_s += present.waited_s
            present.close()
        with self._lock:
            going = list(self._going)
        for thread in going:
            thread.join()

    def _in_background(self, communicator: Communicator) -> None:
        """Close the communicator in a thread, because closing takes until all other ranks have left, too."""
        thread = threading.Thread(target=communicator.close, name="flexo-close", daemon=True)
        thread.start()
        with self._lock:
            self._going = [thread, *(each for each in self._going if each.is_alive())]

    def hang_up(self, generation: int) -> None:
        """See Core.hang_up."""
        present = self._present
        if present is not None and present.place.generation == generation:
            present.break_(f"rank {present.place.rank} hung up")

    def settle(self) -> None:
        """See Core.settle."""
        if self._present is not None:
            self._present.settle()

    def transport(self) -> TensorTransport | None:
        """See Core.transport."""
        return None if self._present is None else self._present.transport()

    def _at_exit(self) -> None:
        """Leave all communicators in order, within a short time."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            building, unwanted = self._building, self._prepared
        if building is not None:
            building.break_("a member has ended")  # its own thread closes it
        if unwanted is not None:
            unwanted.break_("a member has ended")
            unwanted.close()
        # A thread that comes back from native code while Python ends would end the process with an error.
        self._nothing_building.wait(BREAKING_S)
        with contextlib.suppress(RuntimeError):
            self.leave()
