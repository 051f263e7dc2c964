"""flexo-web's pages over HTTP, for those who have signed in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from flexo_cli.connection import Daemon
from flexo_protos import web_login
from flexo_protos.credentials import Authenticator
from flexo_web.explanations import Explanations
from flexo_web.feed import Client, Feed
from flexo_web.openid import OpenId
from flexo_web.refusals import RefusalLog
from flexo_web.security_headers import SecurityHeaders
from flexo_web.sign_in import SignIn
from flexo_web.tokens import Viewer
from flexo_web.trusted_header import TrustedHeader
from flexo_web.updates import Updates
from flexo_web.views import MINE, NOW, Address, Views, of_job

_LARGEST_JOB: Final = (1 << 64) - 1
_SEE_OTHER, _NOT_FOUND, _TOO_MANY = 303, 404, 429
_PAGES_OF_A_USER: Final = 8
"""The most pages of a user that are being made: some wait for flexod, in turn with those of others."""
_NOT_SIGNED_IN: Final = "You are not signed in."
_Endpoint = Callable[[Request], Awaitable[Response]]


class Site:
    """All pages on one flexod. It holds nothing that flexod does not tell every user of the cluster."""

    def __init__(
        self,
        connect: Callable[[], Daemon],
        authenticator: Authenticator,
        url: str,
        proxy_header: str = "",
        refusals: RefusalLog | None = None,
        openid: OpenId | None = None,
    ) -> None:
        """`connect`: makes a client of flexod. `authenticator`: verifies users' credentials. `url`: that
        of the pages. `proxy_header`: where a trusted proxy names the user; "": no proxy is trusted.
        `openid`: signs visitors in; None: no provider does."""
        self._url = url
        self._proxy_header = proxy_header
        self._refusals = refusals or RefusalLog()
        self._feed = Feed(Client(connect))
        self._views = Views(Explanations(Client(connect)))
        self._sign_in = SignIn(self._views, authenticator, url, openid=openid, refusals=self._refusals)
        self._updates = Updates(self._feed, self._views)
        self._being_made: Counter[int] = Counter()

    def app(self) -> Starlette:
        """The application to serve."""
        host = urlsplit(self._url).hostname or ""
        hosts = sorted(web_login.LOOPBACK) if host in web_login.LOOPBACK else [host]
        return Starlette(
            routes=[
                *self._page("/", lambda request: NOW),
                *self._page("/mine", lambda request: MINE),
                *self._page("/jobs/{job_id:int}", _job_of),
                Route("/jobs", self._look_up),
                *self._sign_in.routes(),
                Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
            ],
            middleware=[
                Middleware(SecurityHeaders),
                # a page of another site must not reach this one under a name of its own (DNS rebinding)
                Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
                *self._trusted_header(),
                Middleware(GZipMiddleware, compresslevel=4),
            ],
            lifespan=self._taking_snapshots,
        )

    def _trusted_header(self) -> list[Middleware]:
        if not self._proxy_header:
            return []
        return [Middleware(TrustedHeader, header=self._proxy_header, log=self._refusals)]

    @asynccontextmanager
    async def _taking_snapshots(self, app: Starlette) -> AsyncIterator[None]:
        taking = asyncio.create_task(self._feed.run())
        try:
            yield
        finally:
            taking.cancel()

    def _page(self, path: str, address_of: Callable[[Request], Address]) -> list[Route]:
        """The routes of a page and of the stream that says when it has changed."""

        async def show(request: Request) -> Response:
            viewer = self._sign_in.viewer(request)
            if viewer is None:
                return self._sign_in.entrance(request)
            if self._being_made[viewer.uid] >= _PAGES_OF_A_USER:
                text = f"too many requests at once: {_PAGES_OF_A_USER} of a user are allowed"
                return PlainTextResponse(text, _TOO_MANY)
            self._being_made[viewer.uid] += 1
            try:
                return await self._made(address_of(request), viewer)
            finally:
                self._being_made[viewer.uid] -= 1

        async def tell_changes(request: Request) -> Response:
            viewer = self._sign_in.viewer(request)
            if viewer is None:
                return self._sign_in.how_to(_NOT_SIGNED_IN)
            return self._updates.stream(
                address_of(request), viewer, lambda: self._sign_in.viewer(request) is not None
            )

        return [Route(path, show), Route(f"/updates{path}", tell_changes)]

    async def _made(self, address: Address, viewer: Viewer) -> Response:
        content = await self._views.content(address, await self._feed.fresh(), viewer)
        html = self._views.whole(address, content, viewer)
        return HTMLResponse(html, 200 if content.found else _NOT_FOUND)

    async def _look_up(self, request: Request) -> Response:
        """The page of the job whose number somebody has typed."""
        number = request.query_params.get("id", "").strip()
        known = number.isascii() and number.isdecimal() and 0 < int(number[:21]) <= _LARGEST_JOB
        return RedirectResponse(of_job(int(number[:21])).path if known else NOW.path, _SEE_OTHER)


def _job_of(request: Request) -> Address:
    return of_job(min(request.path_params["job_id"], _LARGEST_JOB))
