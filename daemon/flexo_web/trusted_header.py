"""Takes the user's name from a proxy that has signed the user in, and from nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flexo_web.accounts import NoAccount, viewer_named
from flexo_web.proxy_socket import came_through_proxy
from flexo_web.refusals import RefusalLog
from flexo_web.tokens import Viewer

NAMED_FOR_S: Final = 600.0
"""How long a request may last. An open page then asks again, and the proxy says again who the user is."""
_NAMED: Final = "named_by_proxy"
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class _Named:
    viewer: Viewer
    until: float


class _Refused(Exception):
    """The request is refused; the message says why."""


def named_by_proxy(scope: Scope, clock: Callable[[], float] = time.monotonic) -> Viewer | None:
    """The viewer whom the proxy has named for a request; None if there is none any more."""
    named: _Named | None = scope.get("state", {}).get(_NAMED)
    return named.viewer if named is not None and clock() < named.until else None


class TrustedHeader:
    """Middleware. Every request through the proxy's socket names its user; no other request may."""

    def __init__(
        self, app: ASGIApp, header: str, log: RefusalLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`header`: the name of the header, in any case."""
        self._app = app
        self._header = header
        self._key = header.lower().encode("ascii")
        self._log = log
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            try:
                await self._identify(scope)
            except _Refused as error:
                self._log.note(str(error))
                await PlainTextResponse(f"{error}\n", _FORBIDDEN)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _identify(self, scope: Scope) -> None:
        said = [value for name, value in scope["headers"] if name == self._key]
        if came_through_proxy(scope):
            viewer = await asyncio.to_thread(self._viewer, said)
            scope["state"][_NAMED] = _Named(viewer, self._clock() + NAMED_FOR_S)
        elif said:
            raise _Refused(
                f"a request over TCP has the header {self._header}, and only the proxy may name a user"
            )

    def _viewer(self, said: list[bytes]) -> Viewer:
        """The account that the proxy names. Raises _Refused unless it is exactly one ordinary account."""
        if len(said) != 1:
            raise _Refused(f"the proxy sent {len(said)} headers {self._header}: exactly one is allowed")
        try:
            return viewer_named(said[0].decode("latin-1"))
        except NoAccount as error:
            raise _Refused(f"{self._header}: {error}") from error
