"""Finds Gloo's connections of one communicator among all sockets of the process, and breaks them.

A worker that gives up its generation tells the others by shutting its connections down. Gloo itself keeps
them open. Workers that wait for this worker, and not for the one that died, would notice only at the timeout.

While a communicator is built, the script trains on and may open sockets of its own. Gloo's sockets are the
TCP sockets that appeared meanwhile and that child programs would inherit. Gloo does not ask for
close-on-exec; Python and gRPC always do. Connected sockets of Gloo are also non-blocking and yet have a
timeout, which Gloo sets on each. If the ports at which the members of a group listen are known, no guess is
needed: see `among`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

Sockets = Mapping[int, int]
"""Descriptors of sockets with their inodes. The inode tells a reused descriptor from the original one."""
Endpoint = tuple[str, int]
"""The IP address and port at which a process listens."""


def open_now() -> Sockets:
    """All sockets of this process."""
    found = {}
    for name in (entry.name for entry in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def core_since(before: Sockets) -> Sockets:
    """The core's connected sockets that were not there `before`."""
    return {number: inode for number, inode in _core(before) if _has_a_time_limit(number, inode)}


def listening_since(before: Sockets) -> list[Endpoint]:
    """The endpoints of listening sockets that are new since `before` and could be Gloo's."""
    found = []
    for number, inode in _core(before):
        with contextlib.suppress(OSError), _again(number, inode) as connection:
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(_endpoint(connection.getsockname()))
    return found


def among(here: Endpoint, others: Collection[Endpoint]) -> Sockets:
    """Connections that were made to `here`, and those from this process to one of the `others`."""
    found = {}
    for number, inode in _core({}):
        with contextlib.suppress(OSError), _again(number, inode) as connection:
            far = _endpoint(connection.getpeername())
            if far in others or _endpoint(connection.getsockname()) == here:
                found[number] = inode
    return found


def shut_down_unfinished(before: Sockets) -> None:
    """Break all sockets that the core has opened since `before`, even listening ones, to end its build."""
    shut_down(dict(_core(before)))


def shut_down(sockets: Sockets) -> None:
    """Break these connections. Descriptors that were closed or reused meanwhile are left alone."""
    for number, inode in sockets.items():
        with contextlib.suppress(OSError), _again(number, inode) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def _core(before: Sockets) -> Iterator[tuple[int, int]]:
    for number, inode in open_now().items():
        if before.get(number) == inode:
            continue
        with contextlib.suppress(OSError), _again(number, inode) as connection:
            inherited = not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            if inherited and connection.family in (socket.AF_INET, socket.AF_INET6):
                yield number, inode


def _has_a_time_limit(number: int, inode: int) -> bool:
    with contextlib.suppress(OSError), _again(number, inode) as connection:
        limit = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("@ll"))
        return not os.get_blocking(number) and struct.unpack("@ll", limit) != (0, 0)
    return False


def _endpoint(name: tuple[str, int]) -> Endpoint:
    """The endpoint in a socket's name. The name has more parts in IPv6."""
    return name[0], name[1]


def _again(number: int, inode: int) -> socket.socket:
    """A second descriptor of the socket `number`. Raises OSError if the number has another inode now."""
    copy = os.dup(number)
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return socket.socket(fileno=copy)
