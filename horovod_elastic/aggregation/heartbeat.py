"""Notices that the other end of a connection has stopped, though its machine still takes what is sent."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

BEAT_S = 0.5
"""Seconds of silence after which the other end is asked whether it is there."""
ANSWERS_WITHIN_S = 5.0
"""Seconds within which it answers, also on a busy machine."""


class Heartbeat:
    """The silence of one connection. `ask`: sends PING, and returns whether it did so at once."""

    def __init__(self, connection: socket.socket, ask: Callable[[], bool]) -> None:
        """Raises EOFError if another thread has closed the connection."""
        descriptor = connection.fileno()
        if descriptor < 0:
            raise EOFError("it was closed")
        self._arrivals = select.poll()
        self._arrivals.register(descriptor, select.POLLIN)
        self._ask = ask

    def wait(self) -> None:
        """Wait until there is something to receive. Raises TimeoutError if the other end does not answer."""
        asked_at = 0.0
        while not self._arrivals.poll(BEAT_S * 1000):
            now = time.monotonic()
            if not asked_at:
                asked_at = now if self._ask() else 0.0
            elif now > asked_at + ANSWERS_WITHIN_S:
                raise TimeoutError(f"it has not answered for {ANSWERS_WITHIN_S:g} s")
