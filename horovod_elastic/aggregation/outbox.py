"""Sends frames on one connection from a thread of its own, so that whoever sums never waits for the network.

Pushes and results cross on a connection. If one thread received and sent, both ends could stand with full
buffers, each waiting for the other to receive.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.frames import Frame, Kind
from horovod_elastic.aggregation.meter import ThreadClock

FLUSH_S = 1.0
"""Seconds that the end of a connection waits for frames on their way, such as the news of deaths."""


class Outbox:
    """The frames that are still to be sent on `connection`, in order. Any thread may add some."""

    def __init__(
        self, connection: socket.socket, name: str, spent: Callable[[float], None] | None = None
    ) -> None:
        """`spent`: called with the CPU seconds that sending takes."""
        self._connection = connection
        self._spent = spent
        self._waiting: deque[tuple[Frame, Sequence[bytes | memoryview]]] = deque()
        self._change = threading.Condition()
        self._ending = False
        self._sending = False
        self._answers = False
        """Whether a PONG is waiting."""
        self._thread = threading.Thread(target=self._send_all, name=f"to-{name}", daemon=True)
        self._thread.start()

    def add(self, frame: Frame, payload: Sequence[bytes | memoryview] = ()) -> None:
        """Send this soon. The payload's memory must keep its values until the other end has answered."""
        with self._change:
            self._waiting.append((frame, payload))
            self._change.notify()

    def answer(self) -> None:
        """Send PONG soon. One that is waiting already answers this, too: who never reads fills no memory."""
        with self._change:
            if not self._answers:
                self._answers = True
                self._waiting.append((Frame(Kind.PONG), ()))
                self._change.notify()

    def add_if_idle(self, frame: Frame) -> bool:
        """Send this at once, unless something is being sent. Returns whether it is."""
        with self._change:
            if self._waiting or self._sending:
                return False
            self._waiting.append((frame, ()))
            self._change.notify()
            return True

    def end(self) -> None:
        """Send what is waiting, then shut the connection down. Does not wait."""
        with self._change:
            self._ending = True
            self._change.notify()

    def ended(self, within_s: float = FLUSH_S) -> None:
        """End, and wait a short time until everything is sent."""
        self.end()
        self._thread.join(within_s)

    def _send_all(self) -> None:
        clock = ThreadClock(self._spent)
        try:
            while True:
                with self._change:
                    self._sending = False
                    while not self._waiting and not self._ending:
                        self._change.wait()
                    if not self._waiting:
                        break
                    frame, payload = self._waiting.popleft()
                    self._answers &= frame.kind is not Kind.PONG
                    self._sending = True
                frames.send(self._connection, frame, payload)
                clock.tick()
        except OSError:
            pass  # the receiving side of the connection notices it too
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
