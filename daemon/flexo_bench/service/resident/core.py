"""The core of a parameter server: one thread that runs one request at a time, in the order of their times.

A request may have to take a certain time, though its sums are small. The thread then sleeps for the rest, so
that a small model on two cores keeps a server as busy as a large model does.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable


class Core:
    """See the module. The thread ends with the process."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, at_ns: int, takes_ns: int, what: Callable[[], None]) -> None:
        """Run `what` at this time of the monotonic clock or later. It occupies the core for `takes_ns`."""
        with self._changed:
            self._count += 1
            heapq.heappush(self._waiting, (at_ns, self._count, takes_ns, what))
            self._changed.notify()

    def _run(self) -> None:
        free_ns = 0
        while True:
            at_ns, takes_ns, what = self._next()
            # from when it could run, not from now: sleeps that end late must not add up
            free_ns = max(free_ns, at_ns) + takes_ns
            if takes_ns and (left_ns := free_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / 1e9)
            what()

    def _next(self) -> tuple[int, int, Callable[[], None]]:
        with self._changed:
            while True:
                left_ns = self._waiting[0][0] - time.monotonic_ns() if self._waiting else None
                if left_ns is not None and left_ns <= 0:
                    at_ns, _, takes_ns, what = heapq.heappop(self._waiting)
                    return at_ns, takes_ns, what
                self._changed.wait(None if left_ns is None else left_ns / 1e9)
