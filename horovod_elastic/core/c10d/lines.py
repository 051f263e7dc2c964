"""One TCP connection between a rank and rank 0: messages behind their lengths, and who is gone is noticed.

The kernel, not the process, answers when the other end asks whether this one is still there: a rank that
computes for a minute without looking up is alive, a machine that lost its power is not. So that the kernel
has something to ask about, each end says nothing now and then, in as many words.
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

BEAT_S = 0.4
"""How often each end says nothing."""
GONE_AFTER_S = 1.1
"""A machine that has not answered for so long is gone; what closes its connection is noticed at once."""
MAX_MESSAGE_BYTES = 256 * 2**20
MAX_HELLO_BYTES = 1024
"""Of the first message, which proves that the rest comes from a rank."""
_LENGTH = struct.Struct("<I")
NOTHING = _LENGTH.pack(0)
"""An empty message."""


def framed(message: Message) -> bytes:
    """What goes over the line."""
    data = message.SerializeToString()
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Puts messages together again from what arrives in pieces."""

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.most_bytes = most_bytes
        """Of one message; may be changed between two."""
        self._data = bytearray()

    def add(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole now, to be taken to the last. Raises ValueError for one too long."""
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


def watch(connection: socket.socket) -> None:
    """Send without delay, and have the kernel find out whether the other machine is still there."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(GONE_AFTER_S * 1000))


def close(connection: socket.socket) -> None:
    """Also for a process that was forked meanwhile and holds it, too."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class Line:
    """A rank's end of it. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        watch(connection)
        self.own_address = str(connection.getsockname()[0])
        """The IP address that this machine has towards rank 0."""
        self._connection = connection
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)
        self._sending = threading.Lock()
        self._frames = Frames()
        self._whole: list[bytes] = []

    def send(self, message: Message) -> None:
        """Raises OSError if the other end is gone."""
        self._send(framed(message))

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._connection.sendall(data)

    def receive(self) -> bytes | None:
        """The next message; None once the line is closed or broken."""
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
        """Any thread: a `receive` returns None, here and at the other end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """By the thread that receives, so that it never reads what has got the same descriptor since."""
        self.end()
        with self._sending:
            self._connection.close()

    def forget(self) -> None:
        """In a forked process: it holds a copy of the descriptor, which would keep the connection open."""
        with contextlib.suppress(OSError):
            os.close(self._connection.detach())
