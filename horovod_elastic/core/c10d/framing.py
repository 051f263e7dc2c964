"""One TCP connection between a rank and rank 0: length-prefixed messages, and detection of a dead peer.

The kernel, not the process, acknowledges data to the other end. So a rank that computes for a minute without
reading counts as alive. A machine that lost its power does not. Each end sends an empty message now and then,
so that the kernel always has data to wait an acknowledgement for.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator

from google.protobuf.message import Message

from horovod_elastic import sockets

BEAT_S = 0.4
"""Seconds between empty messages. Rank 0 sends them regularly, other ranks when nothing arrives meanwhile."""
MAX_MESSAGE_BYTES = 256 * 2**20
MAX_HELLO_BYTES = 1024
"""Limit of a connection's first message, which proves that the connection comes from a rank."""
_LENGTH = struct.Struct("<I")
NOTHING = _LENGTH.pack(0)
"""The frame of an empty message."""


def framed(message: Message) -> bytes:
    """The message's frame on the connection: its length, then its bytes."""
    data = message.SerializeToString()
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Assembles messages from the pieces in which they arrive."""

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.most_bytes = most_bytes
        """The limit of one message's bytes. It may be changed between two messages."""
        self._data = bytearray()

    def add(self, data: bytes) -> Iterator[bytes]:
        """Add `data` and yield the messages that are complete now. The caller must exhaust the iterator.

        Raises ValueError for a message that is too long.
        """
        self._data += data
        at = 0
        while len(self._data) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, at)
            if size > self.most_bytes:
                raise ValueError(f"a message of {size} bytes")
            end = at + _LENGTH.size + size
            if len(self._data) < end:
                break
            yield bytes(self._data[at + _LENGTH.size : end])
            at = end
        del self._data[:at]


class FramedConnection:
    """A rank's end of the connection to rank 0. Any thread may send; only one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        sockets.watch(connection)
        self.own_address = str(connection.getsockname()[0])
        """This machine's IP address on the connection to rank 0."""
        self._connection = connection
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)
        self._sending = threading.Lock()
        self._frames = Frames()
        self._whole: list[bytes] = []

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        self._send(framed(message))

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._connection.sendall(data)

    def receive(self) -> bytes | None:
        """Wait for the next message and return it. Returns None once the connection is closed or broken."""
        while not self._whole:
            try:
                if not self._arrivals.poll(BEAT_S * 1000):
                    self._send(NOTHING)
                    continue
                data = self._connection.recv(2**18)
                self._whole = list(self._frames.add(data))
            except (OSError, ValueError):
                return None
            if not data:
                return None
        return self._whole.pop(0)

    def end(self) -> None:
        """End the connection: `receive` returns None here and at the other end. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Only the receiving thread may call it.

        Otherwise that thread could read from another file that has got the same descriptor since.
        """
        self.end()
        with self._sending:
            self._connection.close()

    def forget(self) -> None:
        """Close a forked process's copy of the descriptor, which would keep the connection open."""
        with contextlib.suppress(OSError):
            os.close(self._connection.detach())
