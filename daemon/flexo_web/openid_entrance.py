"""The way into the pages by a provider of OpenID Connect. It ends with a link, as `flexo web` makes one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flexo_web.accounts import NoAccount, viewer_named
from flexo_web.openid import CALLBACK_PATH, FLOW_S, NotSignedIn, OpenId
from flexo_web.refusals import RefusalLog
from flexo_web.tokens import Viewer

BEGIN_PATH: Final = "/openid"
_SEE_OTHER, _FORBIDDEN = 303, 403
_AT_ONCE: Final = 4
"""The most visitors for whom the provider is asked at the same time."""
_WAITING: Final = 64
"""The most visitors that wait for this or are asked for: a provider that hangs must not fill the memory."""
_LONGEST: Final = 4096
"""The most characters of a code, and of a state."""


class OpenIdEntrance:
    """The routes of the flow. The cookie that it sets is good for one flow alone."""

    def __init__(
        self,
        openid: OpenId,
        link_for: Callable[[Viewer], str],
        how_to: Callable[[str, int], Response],
        refusals: RefusalLog,
        *,
        secure: bool,
    ) -> None:
        """`link_for`: a link that lets a viewer in once. `how_to`: a page that says why somebody is not let
        in. `secure`: whether people open the pages by https."""
        self._openid = openid
        self._link_for = link_for
        self._how_to = how_to
        self._refusals = refusals
        self._secure = secure
        self._cookie = "__Host-flexo-openid" if secure else "flexo-openid"
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def routes(self) -> list[Route]:
        """The routes to the provider and back."""
        return [Route(BEGIN_PATH, self._begin), Route(CALLBACK_PATH, self._finish)]

    async def _begin(self, request: Request) -> Response:
        try:
            async with self._turn():
                flow = await asyncio.to_thread(self._openid.begin)
        except NotSignedIn as error:
            return self._refuse(str(error))
        away = RedirectResponse(flow.address, _SEE_OTHER)
        # Lax: the way back begins at the provider's site
        away.set_cookie(
            self._cookie, flow.cookie, max_age=int(FLOW_S), secure=self._secure, httponly=True, samesite="lax"
        )
        return away

    async def _finish(self, request: Request) -> Response:
        """Let the visitor in whom the provider names: by a link, whose button begins the session."""
        said = request.query_params
        state, code = said.get("state", "")[:_LONGEST], said.get("code", "")[:_LONGEST]
        if not code:
            return self._refuse(f"the provider let nobody in: {said.get('error', 'it gave no code')[:80]!a}")
        cookie = request.cookies.get(self._cookie, "")
        try:
            async with self._turn():
                name = await asyncio.to_thread(self._openid.finish, cookie, state, code)
                viewer = await asyncio.to_thread(viewer_named, name)
        except (NotSignedIn, NoAccount) as error:
            return self._refuse(str(error))
        entered = RedirectResponse(self._link_for(viewer), _SEE_OTHER)
        self._forget_flow(entered)
        return entered

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one's turn to ask the provider. Raises NotSignedIn: too many wait already."""
        if self._waiting >= _WAITING:
            raise NotSignedIn("too many sign in at this moment: try again in a minute")
        self._waiting += 1
        try:
            async with self._asking:
                yield
        finally:
            self._waiting -= 1

    def _refuse(self, why: str) -> Response:
        self._refusals.note(f"OpenID Connect: {why}")
        refused = self._how_to(f"You are not signed in: {why}.", _FORBIDDEN)
        self._forget_flow(refused)
        return refused

    def _forget_flow(self, response: Response) -> None:
        response.delete_cookie(self._cookie, secure=self._secure, httponly=True, samesite="lax")
