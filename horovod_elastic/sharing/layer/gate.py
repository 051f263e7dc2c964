"""The gate in the opportunistic job: at each module boundary it goes on, or waits until it may go on.

Three things decide: the coordinator's order, the guarantee job's flight, and the age of both pages.
Whatever is missing or stale closes the gate. A boundary that passes costs about a microsecond.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from horovod_elastic.sharing import futex
from horovod_elastic.sharing.layer.flights import Flights
from horovod_elastic.sharing.layer.memory import Memory
from horovod_elastic.sharing.pages import GatePage, GateState, GuaranteePage, OpportunisticPage
from horovod_elastic.sharing.watchdog import STALE_NS

LOOK_S = 0.1
"""While it waits, the job looks at the pages' ages this often."""
_OPEN, _GAPS = int(GateState.OPEN), int(GateState.GAPS)


class Gate:
    """The gate of one process.

    `page`: this job's own. `begin`: called at the first boundary. The connection to the coordinator sets
    `order` and `guarantee`.
    """

    def __init__(self, page: OpportunisticPage, memory: Memory, begin: Callable[[], None]) -> None:
        self.order: GatePage | None = None
        self.guarantee: GuaranteePage | None = None
        self.flights: Flights | None = None
        self.memory = memory
        self._page, self._begin = page, begin
        self._words, self._halves = page.page.words, page.page.halves
        self._begun = False
        self._resumed = self._entered = time.monotonic_ns()
        self._epoch = -1
        self._pretended, self._cpu = memory.place.kind == "cpu", time.thread_time_ns()
        self._lock = threading.RLock()
        self._main = threading.main_thread().ident

    def boundary(self) -> None:
        """Go on, or wait: called wherever the script can be held."""
        if not self._begun:
            self._start()
        order = self.order
        if (
            order is None
            or self._closed_by(order) is not None
            or order.page.words[order.EPOCH] != self._epoch
        ):
            self._stand()
        else:
            if (guarantee := self.guarantee) is not None and guarantee.page.words[
                guarantee.BEGAN
            ] > self._entered:
                self._note_leak(guarantee.ended)  # a flight came and went within one operation
            if self.flights is not None:
                self.flights.boundary()
        self._words[OpportunisticPage.PASSES] += 1
        if self._pretended:
            self._cpu = time.thread_time_ns()

    def step(self) -> None:
        """The end of an optimizer's step: here memory is counted."""
        self._words[OpportunisticPage.STEPS] += 1
        used, order = self.memory.used(), self.order
        self._words[OpportunisticPage.MEMORY] = used
        if order is not None and used > order.limit:
            self._epoch = -1
        self._account()
        self.boundary()

    def _start(self) -> None:
        self._begun = True
        self._begin()
        if torch.cuda.is_initialized():
            self.flights = Flights()

    def _closed_by(self, order: GatePage) -> tuple[int, int, float] | None:
        """None if the gate is open; else the word to wait for, its present value, and for how many
        seconds.
        """
        now = time.monotonic_ns()
        page = order.page
        state = page.halves[1]
        if now - page.words[1] > STALE_NS:
            return page.address, state, LOOK_S
        if state == _OPEN:
            return None
        guarantee = self.guarantee
        if state != _GAPS or guarantee is None:
            return page.address, state, LOOK_S
        told = guarantee.page
        if told.halves[1] or now - told.words[1] > STALE_NS:
            return told.address, told.halves[1], LOOK_S
        if (left := page.words[order.PATIENCE] - now + told.words[guarantee.ENDED]) > 0:
            return told.address, 0, min(LOOK_S, left / 1e9)
        if (every := page.words[order.EVERY]) > 1 and told.words[guarantee.GAPS] % every:
            return told.address, 0, LOOK_S
        return None

    def _stand(self) -> None:
        """Stand at the gate until it opens and all tensors are on the device."""
        self._note_thread()
        self.memory.place.drain()
        if self.flights is not None:
            self.flights.forget()
        self._account()
        self._note_leak(self._resumed)
        self._halves[OpportunisticPage.WAITING] = 1
        try:
            with self._lock:
                while (closed := self._next()) is not None:
                    futex.wait(*closed)
        finally:
            self._halves[OpportunisticPage.WAITING] = 0
            self._resumed = self._entered = time.monotonic_ns()

    def _next(self) -> tuple[int, int, float] | None:
        """What to wait for next; None to go on. Obeys a new memory limit at once, in a closed gate, too."""
        order = self.order
        if order is None:
            return self._page.page.address, 1, LOOK_S
        epoch, inside = order.epoch, True
        if epoch != self._epoch or self.memory.moved:
            inside = self.memory.obey(order.limit)
            self._words[OpportunisticPage.MEMORY] = self.memory.used()
            self._words[OpportunisticPage.MOVED] = self.memory.moved
            self._epoch = epoch if inside else -1
        closed = self._closed_by(order)
        if closed is None and not inside:
            return order.page.address, order.page.halves[1], LOOK_S
        return closed

    def _note_thread(self) -> None:
        """If a second thread of the script computes, nobody can hold both: live tensors stay where they
        are.
        """
        if threading.get_ident() != self._main and not threading.current_thread().name.startswith("Dummy"):
            self.memory.may_move = False

    def _account(self) -> None:
        now = time.monotonic_ns()
        self._words[OpportunisticPage.WORKED] += max(0, now - self._resumed)
        self._resumed = now

    def _note_leak(self, until: int) -> None:
        """Note how long this job has worked into a flight of the guarantee job, if it has.

        On the CPU a job that stands in the kernel's queue does not work: its CPU time counts.
        """
        began = self.guarantee.began if self.guarantee is not None else 0
        if self._entered < began < until:
            leak = until - began
            if self._pretended:  # another thread has another clock
                leak = max(0, min(leak, time.thread_time_ns() - self._cpu))
            self._page.leaks.add(leak)
        self._entered = max(self._entered, began)
