"""What TCP connections inside a job have in common: they send without delay, and miss a dead machine soon."""

from __future__ import annotations

import contextlib
import socket

GONE_AFTER_S = 1.1
"""Seconds without an answer after which a machine counts as gone. A closed connection is noticed at once."""


def watch(connection: socket.socket) -> None:
    """Set the connection to send without delay, and have the kernel detect that the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(GONE_AFTER_S * 1000))


def hold_at_most(connection: socket.socket, size: int) -> None:
    """Have the kernel hold at most so many bytes, with its overhead, that the other end has not acknowledged.

    So the connections of a slow link get equal parts of it, and no long queue forms before it.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size // 2)  # Linux doubles it


def close(connection: socket.socket) -> None:
    """Close the connection, even if a process that was forked meanwhile holds a copy of it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
