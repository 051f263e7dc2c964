"""Bounds for connections: in number, for each socket apart, and in time while no request of theirs is whole.

uvicorn counts the connections of all sockets together and waits for a request as long as the peer likes. So
whoever could reach one socket could keep everybody from all of them, without ever signing in.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from flexo_web.refusals import RefusalLog

CONNECTIONS: Final = 2000
"""The most connections of a socket."""
REQUEST_WITHIN_S: Final = 10.0
"""How long a connection may take until the headers of its next request are whole."""
TAKEN_WITHIN_S: Final = 60.0
"""How long a peer may take to receive what was sent."""
_TOLD_EVERY_S: Final = 60.0
"""A limit that is reached again and again is logged this often."""


class _State(enum.Enum):
    WAITS = enum.auto()
    """For the peer's next request."""
    ANSWERS = enum.auto()
    SENDS = enum.auto()
    """The peer has not yet taken what was sent."""


_BOUNDS_S: Final = {_State.WAITS: REQUEST_WITHIN_S, _State.SENDS: TAKEN_WITHIN_S}


class Share:
    """The connections of one socket. A new one takes the place of the one that has waited for a request
    longest, so that connections without requests keep nobody out.

    There is no limit for each peer: behind `ssh -L`, or a proxy by TCP, all viewers have one address.
    """

    def __init__(self, of: str, log: RefusalLog, clock: Callable[[], float] = time.monotonic) -> None:
        """`of`: what the log calls the socket."""
        self._of = of
        self._log = log
        self._most = CONNECTIONS
        self._clock = clock
        self._told_at = float("-inf")
        self._open: set[BoundedProtocol] = set()
        self._waiting: dict[BoundedProtocol, None] = {}
        """Those that wait for a request; the one that has waited longest comes first."""

    def enter(self, connection: BoundedProtocol) -> bool:
        """Count a new connection. False: the limit is reached, and every other one is being answered."""
        is_full = len(self._open) >= self._most
        if is_full:
            self._tell()
        longest = next(iter(self._waiting), None) if is_full else None
        if longest is not None:
            self.leave(longest)
            longest.transport.abort()
        self._open.add(connection)
        return not is_full or longest is not None

    def leave(self, connection: BoundedProtocol) -> None:
        """Count a connection no more. Once is enough."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def note(self, connection: BoundedProtocol, *, waits: bool) -> None:
        """A connection waits for a request from now on, or no longer."""
        if not waits:
            self._waiting.pop(connection, None)
        elif connection in self._open:
            self._waiting[connection] = None

    def _tell(self) -> None:
        now = self._clock()
        if now - self._told_at < _TOLD_EVERY_S:
            return
        self._told_at = now
        self._log.note(
            f"{self._of} has {self._most} connections, which is the limit; each new one ends the one that has"
            f" waited for a request longest ({len(self._waiting)} wait)"
        )


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP on one connection, within these bounds. A subclass says the connection's share."""

    _share: Share | None = None
    _state: _State | None = None
    _timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport, share: Share) -> None:
        """The connection is made, and counts in `share`."""
        self._share = share
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing is paused until the peer has taken everything
        if not share.enter(self):
            self.limit_concurrency = 0  # so uvicorn answers 503
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._stop_timer()
        if self._share is not None:
            self._share.leave(self)
            self._share = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        """uvicorn has handed over all of an answer."""
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        self._settle()

    def _settle(self) -> None:
        """Note the state that the connection is in now, and give it the time that such a state may last."""
        state = self._present()
        if self._share is None or state is self._state:
            return
        self._state = state
        self._share.note(self, waits=state is _State.WAITS)
        self._stop_timer()
        if state in _BOUNDS_S:
            self._timer = self.loop.call_later(_BOUNDS_S[state], self.transport.abort)

    def _present(self) -> _State:
        if self.flow.write_paused:
            return _State.SENDS
        is_answered = self.cycle is None or self.cycle.response_complete
        return _State.WAITS if is_answered else _State.ANSWERS

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
