"""Closes a gRPC server's connections below gRPC, which closes one only when the other end is gone.

gRPC for Python names the other end of a call, but has no way to close its connection. This process has the
connection's descriptor. So it finds the descriptor with that other end, and shuts it down.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

_LOOK_S: Final = 1.0
"""Interval between checks of the connections."""
_LOOK_SOON_S: Final = 0.1
"""Interval after a check that has closed connections, because their owner opens more."""
_WARNING_S: Final = 10.0
"""Shortest interval between two warnings of closed connections."""
_SHARE: Final = 0.02
"""Largest part of the time that checks of the connections may take."""

End = tuple[str, int]
"""The other end of a connection: address and port."""

_log = logging.getLogger("flexo")


def end_of(peer: str) -> End | None:
    """The other end in gRPC's text: ``ipv6:%5Bfe80::1%5D:40000`` -> ``fe80::1``, 40000. None: no TCP."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


def hang_up_on(peers: Collection[str]) -> int:
    """Close the connections to `peers`, as gRPC writes them; return their number.

    The function reads all descriptors, so do not call it in the event loop's thread.
    """
    ends = {end_of(peer) for peer in peers}
    return sum(_shut_down(number, end) for number, _, end in _connections() if end in ends)


@dataclass(slots=True)
class _Proven:
    """A connection on which a caller has shown a valid credential."""

    uid: int | None
    used_at: float
    """Time when the last call on the connection began or ended."""
    calls: int = 0
    """Number of open calls."""

    @property
    def usefulness(self) -> tuple[bool, float]:
        """The sort key by which connections are closed, the least useful first.

        Connections without an open call are the least useful, and among them those used longest ago. Among
        the others, old ones are the most useful: leaders keep theirs for as long as their jobs run.
        """
        return self.calls > 0, -self.used_at if self.calls else self.used_at


class ConnectionGuard:
    """Closes connections without a proven caller, the oldest first, if one host has too many of them.

    A host that fills a server with connections loses them. A caller that dials and proves its identity keeps
    the connection, up to a number for each user.
    """

    def __init__(
        self,
        silent_of_a_host: int,
        of_a_user: int | None = None,
        more_of: Callable[[int], int] = lambda uid: 0,
        *,
        port: int | None = None,
        warn: Callable[[str], object] = _log.warning,
    ) -> None:
        """`silent_of_a_host`: number of connections without a proven caller that one host may have.

        `of_a_user`: number of proven connections that a user may have; None: any number. `more_of`: returns
        how many more a user may have now; called in the thread that checks. `port`: the server's own port, if
        the guard is not to touch other connections of this process; None: all connections. `warn`: called
        with a sentence on what was closed, in the thread that checks.
        """
        self._most = silent_of_a_host
        self._of_a_user = of_a_user
        self._more_of = more_of
        self._port = port
        self._warn = warn
        self._warns_again_s = 0.0
        self._proven: dict[End, _Proven] = {}
        self._since: dict[int, float] = {}
        """By inode, the time when a connection was first seen."""

    def has_proven(self, peer: str, uid: int | None = None) -> Callable[[object], None]:
        """Note that a caller on the connection to `peer` has shown a valid credential of user `uid`.

        Returns a function to call when the call has ended; its argument is ignored.
        """
        now, end = time.monotonic(), end_of(peer)
        if end is None:
            return lambda _: None
        known = self._proven.get(end)
        if known is None or known.uid != uid:
            known = self._proven[end] = _Proven(uid, now)
        known.calls, known.used_at = known.calls + 1, now

        def ended(_: object) -> None:
            known.calls, known.used_at = known.calls - 1, time.monotonic()

        return ended

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which a thread checks the connections again and again."""
        over = threading.Event()

        def keep_looking() -> None:
            pause_s = _LOOK_S
            while not over.wait(pause_s):
                begun = time.monotonic()
                closed = 0
                try:
                    closed = self.look()
                except Exception as error:  # such as no file left; the thread must go on
                    self._warn(f"connections cannot be counted: {error!r}")
                pause_s = _LOOK_SOON_S if closed else _LOOK_S
                pause_s = max(pause_s, (time.monotonic() - begun) / _SHARE)

        threading.Thread(target=keep_looking, name="connections", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def look(self) -> int:
        """Close the connections that are too many now; return their number."""
        before = frozenset(self._proven)
        now, found = time.monotonic(), list(_connections(self._port))
        self._since = {inode: self._since.get(inode, now) for _, inode, _ in found}
        for end in before.difference(end for _, _, end in found):
            self._proven.pop(end, None)
        silent = defaultdict(list)
        for number, inode, end in found:
            if end not in self._proven:
                silent[end[0]].append((self._since[inode], inode, number, end))
        closed = 0
        for host, connections in silent.items():
            excess = sorted(connections)[: max(0, len(connections) - self._most)]
            gone = sum(_shut_down(number, end) for _, _, number, end in excess)
            if gone and now >= self._warns_again_s:
                self._warns_again_s = now + _WARNING_S
                self._warn(
                    f"{gone} connections of {host} closed: nobody has proven anything on them"
                    f" ({self._most} are allowed)"
                )
            closed += gone
        return closed + self._close_excess_of_users(found)

    def _close_excess_of_users(self, found: Collection[tuple[int, int, End]]) -> int:
        """Close the least useful connections of each user that has too many; return their number."""
        if self._of_a_user is None:
            return 0
        users = defaultdict(list)
        for number, _, end in found:
            known = self._proven.get(end)
            if known is not None and known.uid is not None:
                users[known.uid].append((known.usefulness, number, end))
        closed = 0
        for uid, connections in users.items():
            if len(connections) <= self._of_a_user:
                continue
            allowed = self._of_a_user + self._more_of(uid)
            excess = sorted(connections)[: max(0, len(connections) - allowed)]
            gone = sum(_shut_down(number, end) for _, number, end in excess)
            if gone:
                self._warn(f"{gone} connections of uid {uid} closed: {allowed} are allowed")
            closed += gone
        return closed


def _connections(port: int | None = None) -> Iterator[tuple[int, int, End]]:
    """Descriptor, inode and other end of each TCP connection of this process. They are read one by one.

    `port`: only connections to this port of this host.
    """
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    for number in numbers:
        with suppress(OSError):
            # The socket, of whatever family, is asked for its name as IPv6, which has room for the longest.
            connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, number)
            try:
                end = _named(connection.getpeername())
                own = None if port is None or end is None else _named(connection.getsockname())
            finally:
                connection.detach()
            if end is not None and (own is None or own[1] == port):
                yield number, os.fstat(number).st_ino, end


def _shut_down(number: int, end: End) -> bool:
    """Shut a descriptor down if it still has this other end; return whether it had. gRPC then closes it."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
        if _named(connection.getpeername()) == end:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _named(name: object) -> End | None:
    """Address and port from a socket's name, which has more parts in IPv6. IPv4 over IPv6 is written as IPv4,
    as gRPC does.
    """
    return (str(name[0]).removeprefix("::ffff:"), int(name[1])) if isinstance(name, tuple) else None
