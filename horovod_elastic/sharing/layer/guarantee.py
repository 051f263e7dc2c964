"""The guarantee job's marks: when its work is in flight, how long its steps and gaps take, and its
memory.

A flight begins with the first module that is called and ends with the optimizer's step, or with the
outermost module where no gradients are wanted. On a GPU it ends when the work that was launched until
then is done.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Protocol

import torch

from horovod_elastic.sharing import futex
from horovod_elastic.sharing.layer.place import Place
from horovod_elastic.sharing.pages import GuaranteePage

OTHER_STEPS = 100
"""After this many steps of other optimizers, the optimizer that counts mini-batches is given up."""


class Landing(Protocol):
    """Says when what was launched so far has been done."""

    def after_work(self, flight: int, landed: Any) -> None:
        """Call `landed(flight)` then."""


class OnTheCpu:
    """On the CPU, what was called is done."""

    def after_work(self, flight: int, landed: Any) -> None:
        """Call it now."""
        landed(flight)


class OnAGpu:
    """On a GPU, an event tells. A thread waits for it, asleep (a blocking event does not spin)."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._wait, name="flexo-landing", daemon=True).start()

    def after_work(self, flight: int, landed: Any) -> None:
        """Record an event behind all work of the current stream."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._events.put((flight, event, landed))

    def _wait(self) -> None:
        while True:
            flight, event, landed = self._events.get()
            event.synchronize()
            landed(flight)


class Marks:
    """The marks of one process. `page`: its own."""

    def __init__(self, page: GuaranteePage, place: Place, landing: Landing) -> None:
        self._page, self._place, self._landing = page, place, landing
        self._words, self._halves = page.page.words, page.page.halves
        self._flying = False
        self._flight = 0
        self._root: Any = None
        self._lock = threading.Lock()
        self._counted, self._others = 0, 0
        self._stepped = 0

    def before_module(self, module: Any) -> None:
        """A module is called: if nothing is in flight, a flight begins."""
        if self._flying:
            return
        self._flying, self._root = True, module
        now = time.monotonic_ns()
        with self._lock:
            self._flight += 1
            if self._halves[GuaranteePage.IN_FLIGHT]:
                return  # the work of the flight before is not done yet: one longer flight
            self._words[GuaranteePage.BEGAN] = now
            self._halves[GuaranteePage.IN_FLIGHT] = 1
        if ended := self._words[GuaranteePage.ENDED]:
            self._page.gaps.add(max(0, now - ended))

    def after_module(self, module: Any) -> None:
        """A module returned: without gradients, nothing comes after the outermost one."""
        if module is self._root and not torch.is_grad_enabled():
            self._end()

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._end()
        if not self._counts(optimizer):
            return
        now = time.monotonic_ns()
        if self._stepped:
            self._page.cycles.add(now - self._stepped)
        self._stepped = now
        self._words[GuaranteePage.MEMORY] = self._place.used()
        self._words[GuaranteePage.PEAK] = self._place.peak()

    def stop(self) -> None:
        """Nobody shares the GPU any more: whatever is in flight is nobody's business."""
        self._stepped = 0
        self._flying, self._root = False, None
        self._landed(self._flight)
        self._words[GuaranteePage.ENDED] = 0

    def _counts(self, optimizer: Any) -> bool:
        """Whether this optimizer's steps are the mini-batches: several may step in each of them."""
        if self._counted == id(optimizer) or not self._counted or self._others >= OTHER_STEPS:
            self._counted, self._others = id(optimizer), 0
            return True
        self._others += 1
        return False

    def _end(self) -> None:
        if self._flying:
            self._flying, self._root = False, None
            self._landing.after_work(self._flight, self._landed)

    def _landed(self, flight: int) -> None:
        """All work of `flight` is done. If the next one has begun, the flight goes on."""
        with self._lock:
            if flight != self._flight or not self._halves[GuaranteePage.IN_FLIGHT]:
                return
            now = time.monotonic_ns()
            self._words[GuaranteePage.ENDED] = now
            self._words[GuaranteePage.WORKED] += now - self._words[GuaranteePage.BEGAN]
            self._halves[GuaranteePage.IN_FLIGHT] = 0
        futex.wake(self._page.page.address)
