"""The Unix socket for a proxy that signs users in. Only the proxy's account may speak there.

The kernel says which account has connected (SO_PEERCRED). The connection of another account is closed before
anything is read. Requests that come this way are marked, and no request over TCP can have the mark.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import Scope

from flexo_web.connections import BoundedProtocol, Share
from flexo_web.refusals import RefusalLog

_MARK: Final = "came_through_proxy"
_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred of Linux: pid, uid and gid."""
_OVERFLOW_UID: Final = Path("/proc/sys/kernel/overflowuid")
_EVERYBODY_MAY_CONNECT: Final = 0o666
"""The kernel's word on the peer decides, and not the mode."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy that is trusted: where it connects, and as which account."""

    socket: Path
    uid: int
    """The only account that may connect."""
    header: str
    """The name of the header in which the proxy names the user."""

    def __post_init__(self) -> None:
        """Raises ValueError for an account that says nothing of who connects."""
        if self.uid == overflow_uid():
            raise ValueError(
                f"uid {self.uid} stands for all accounts that a user namespace does not map:"
                " run the proxy as an account of its own"
            )


def overflow_uid() -> int:
    """The uid that the kernel shows for accounts which it cannot map."""
    return int(_OVERFLOW_UID.read_text())


def listening(path: Path) -> socket.socket:
    """A new Unix socket at `path`, to which a proxy can connect. Raises OSError, also if another process
    listens there. A socket that nobody serves any more is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_unserved(path)
        made.bind(os.fspath(path))
        path.chmod(_EVERYBODY_MAY_CONNECT)
    except OSError:
        made.close()
        raise
    return made


def peer_uid(connection: socket.socket) -> int:
    """The account that connected to a Unix socket, by the kernel's word."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    assert isinstance(told, bytes)
    uid: int = _CREDENTIALS.unpack(told)[1]
    return uid


def came_through_proxy(scope: Scope) -> bool:
    """Whether a request came from the proxy's account through the proxy's socket."""
    return bool(scope.get("state", {}).get(_MARK))


def protocol_for(proxy: Proxy | None, log: RefusalLog) -> type[BoundedProtocol]:
    """uvicorn's HTTP, which knows the proxy's connections from others. Each socket has a share of its own."""
    by_tcp, by_proxy = Share("the TCP port", log), Share("the proxy's socket", log)

    class Protocol(BoundedProtocol):
        """One connection, by TCP or through the proxy's socket."""

        _is_refused = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """See asyncio.Protocol."""
            connection: socket.socket = transport.get_extra_info("socket")
            if connection.family != socket.AF_UNIX:
                self.begin(transport, by_tcp)
                return
            uid = peer_uid(connection)
            if proxy is not None and uid == proxy.uid:
                self.begin(transport, by_proxy)
                self.app_state = {**self.app_state, _MARK: True}
                return
            self._is_refused = True
            allowed = f"only uid {proxy.uid} may" if proxy is not None else "nobody may"
            log.note(f"uid {uid} connected to the proxy's socket, and {allowed}")
            transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            """See asyncio.Protocol."""
            if not self._is_refused:
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """See asyncio.Protocol."""
            if not self._is_refused:
                super().data_received(data)

    return Protocol


def _remove_unserved(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        if tried.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()
