"""Those who are connected with an Aggregator, as it speaks to them: workers of its node, and other nodes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.frames import Frame, Kind
from horovod_elastic.aggregation.outbox import Outbox


class Node:
    """The connection of another node, which pushes to this Aggregator."""

    def __init__(self, connection: socket.socket, index: int, spent: Callable[[float], None] | None) -> None:
        self.outbox = Outbox(connection, f"node-{index}", spent)
        self.outbox.add(Frame(Kind.READY))
        self.over = threading.Event()
        """Set once nothing is received from the connection any more."""
        self._connection = connection

    def end(self) -> None:
        """Hear nothing more, and send what is waiting."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)
        self.outbox.end()


class Worker:
    """The connection of a worker of this node. Frames to it are small, and the worker always reads."""

    def __init__(self, connection: socket.socket, keys_to_come: int) -> None:
        self.keys_to_come = keys_to_come
        """How many keys of an Aggregator that is gone the worker has not registered yet."""
        self._connection = connection
        self._lock = threading.Lock()
        self._knows = False

    def say(self, frame: Frame, text: bytes = b"") -> None:
        """Send a frame. Whoever is gone does not hear it."""
        with self._lock, contextlib.suppress(OSError):
            frames.send(self._connection, frame, (text,) if text else ())

    def ready(self) -> None:
        """Say once that everybody of the plan is connected."""
        if not self._knows:
            self._knows = True
            self.say(Frame(Kind.READY))

    def send_fd(self, frame: Frame, fd: int) -> None:
        """Send a frame with an open file."""
        with self._lock, contextlib.suppress(OSError):
            frames.send_with_fds(self._connection, frame, [fd])

    def close(self) -> None:
        """End the connection for both sides."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
