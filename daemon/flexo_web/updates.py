"""Tells open pages when they have changed (server-sent events). What has changed they fetch themselves."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final

from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from flexo_web.feed import Feed
from flexo_web.tokens import Viewer
from flexo_web.views import Address, Views

STREAMS_OF_A_USER: Final = 20
"""The most open pages of a user that hear of changes."""
STREAMS: Final = 1000
"""The most open pages of all users."""
SIGN_OF_LIFE_S: Final = 15.0
"""A stream is silent for no longer: proxies end connections that are."""
_TOO_MANY: Final = 429


class Updates:
    """The streams of all open pages."""

    def __init__(self, feed: Feed, views: Views) -> None:
        self._feed = feed
        self._views = views
        self._open: Counter[int] = Counter()

    def stream(self, address: Address, viewer: Viewer, signed_in: Callable[[], bool]) -> Response:
        """The stream of one open page, until `signed_in` is false. It counts from now on."""
        if self._open[viewer.uid] >= STREAMS_OF_A_USER or self._open.total() >= STREAMS:
            return PlainTextResponse(
                f"too many open pages: {STREAMS_OF_A_USER} of a user are allowed", _TOO_MANY
            )
        self._open[viewer.uid] += 1
        return _Stream(self._lines(address, viewer, signed_in), lambda: self._close(viewer.uid))

    def _close(self, uid: int) -> None:
        self._open[uid] -= 1
        if not self._open[uid]:
            del self._open[uid]

    async def _lines(
        self, address: Address, viewer: Viewer, signed_in: Callable[[], bool]
    ) -> AsyncGenerator[str]:
        with self._feed.watched():
            shown, snapshot, said_at = "", self._feed.now, time.monotonic()
            while signed_in():
                digest = (await self._views.content(address, snapshot, viewer)).digest
                if digest != shown:
                    shown, said_at = digest, time.monotonic()
                    yield f"event: changed\ndata: {digest}\n\n"
                elif time.monotonic() - said_at >= SIGN_OF_LIFE_S:
                    said_at = time.monotonic()
                    yield ": still here\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(SIGN_OF_LIFE_S):
                        snapshot = await self._feed.after(snapshot.number)


class _Stream(StreamingResponse):
    """A stream that counts until it ends: after it was sent, or when nobody holds it any more, because it
    never was."""

    def __init__(self, lines: AsyncGenerator[str], close: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._close = weakref.finalize(self, close)  # which calls it once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
