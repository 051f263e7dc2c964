"""The connections of Horovod's core, so that a worker that gives up its generation lets the others know.

A worker whose collective failed leaves its background loop, but the core keeps its connections open until it
is initialised again. Others that wait for this worker, and not for the one that died, would notice only when
Gloo's time is up (HOROVOD_GLOO_TIMEOUT_SECONDS). So the connections are shut down at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_core: dict[int, int] = {}
"""Descriptors that appeared while the core was initialised, with their inodes: numbers are used again."""


@contextmanager
def recorded() -> Iterator[None]:
    """Sockets that appear meanwhile are the core's, of its new generation."""
    global _core
    before = _sockets()
    yield
    _core = dict(_sockets().items() - before.items())


def hang_up() -> None:
    """Shut down the core's connections; what is closed already is left alone."""
    now = _sockets()
    for descriptor, inode in _core.items():
        if now.get(descriptor) == inode:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, int]:
    found = {}
    for name in (entry.name for entry in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found
