"""How a user of the cluster becomes a viewer: a credential, a link that works once, a session; or a proxy."""

from __future__ import annotations

import asyncio
import pwd
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from flexo_protos import web_login
from flexo_protos.credentials import METADATA_KEY, Authenticator, NotAuthentic
from flexo_web.forms import FormTokens, from_own_page, own_origins
from flexo_web.openid import OpenId
from flexo_web.openid_entrance import BEGIN_PATH, OpenIdEntrance
from flexo_web.proxy_socket import came_through_proxy
from flexo_web.refusals import RefusalLog
from flexo_web.tokens import Tokens, Viewer
from flexo_web.trusted_header import named_by_proxy
from flexo_web.views import Views

LINK_S: Final = 300.0
"""How long a link may be opened."""
SESSION_S: Final = 12 * 3600.0
_LINKS_OF_A_USER: Final = 5
_SESSIONS_OF_A_USER: Final = 20
_VERIFICATIONS: Final = 4
"""The most credentials that are with munged at once."""
_SEE_OTHER, _UNAUTHORIZED, _FORBIDDEN = 303, 401, 403
_NOT_SIGNED_IN: Final = "You are not signed in."
_NOTHING_CHANGED: Final = (
    "You are not signed in, or not any more. Nothing was changed. Sign in, and open the page again."
)
_READING: Final = ("GET", "HEAD")
_USED: Final = "This link was used already, or is over."
_BY_PROXY: Final = "Your site's sign-in let you in here. Sign out there."
_FOREIGN: Final = "This request came from another site."


class SignIn:
    """Links and sessions. They live in this process: a restart ends them all."""

    def __init__(
        self,
        views: Views,
        authenticator: Authenticator,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        openid: OpenId | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        """`url`: under which people open the pages; links begin with it. `openid`: signs visitors in; None:
        no provider does."""
        self._views = views
        self._authenticator = authenticator
        self._url = url
        self._origins = own_origins(url)
        self._links = Tokens(LINK_S, _LINKS_OF_A_USER, clock)
        self._sessions = Tokens(SESSION_S, _SESSIONS_OF_A_USER, clock)
        self._secure = urlsplit(url).scheme == "https"
        self._cookie = "__Host-flexo" if self._secure else "flexo"
        self._forms = FormTokens()
        self._verifying = asyncio.Semaphore(_VERIFICATIONS)
        self._openid = openid and OpenIdEntrance(
            openid, self._link_for, self.how_to, refusals or RefusalLog(), secure=self._secure
        )

    def routes(self) -> list[Route]:
        """The routes to come in and to go."""
        return [
            Route(web_login.LINKS_PATH, self._make_link, methods=["POST"]),
            Route("/enter/{token:str}", self._ask_to_enter),
            Route("/enter/{token:str}", self._enter, methods=["POST"]),
            Route("/leave", self._leave, methods=["POST"]),
            *(self._openid.routes() if self._openid else ()),
        ]

    def viewer(self, request: Request) -> Viewer | None:
        """Whose session the request belongs to, or whom the proxy has named for it; None: nobody's."""
        if came_through_proxy(request.scope):
            return named_by_proxy(request.scope)
        return self._sessions.holder(request.cookies.get(self._cookie, ""))

    def is_own_page(self, request: Request) -> bool:
        """Whether a page of this site has sent the request's form."""
        return from_own_page(request, self._origins)

    def form_token(self, request: Request, path: str) -> str:
        """The token of the form at `path`, for the session that the request belongs to."""
        return self._forms.of(self._session(request), path)

    def is_own_form(self, request: Request, path: str, token: str) -> bool:
        """Whether a form at `path` was shown in the session that the request belongs to."""
        return self._forms.fits(token, self._session(request), path)

    def _session(self, request: Request) -> str:
        """A name of the session. The proxy has none: there, the user's."""
        if came_through_proxy(request.scope):
            named = named_by_proxy(request.scope)
            return f"proxy {named.uid if named else ''}"
        return f"cookie {request.cookies.get(self._cookie, '')}"

    def how_to(self, why: str, status: int = _UNAUTHORIZED) -> HTMLResponse:
        """The page that says how to sign in."""
        return HTMLResponse(self._views.sign_in(why, None), status)

    def entrance(self, request: Request) -> Response:
        """The answer to somebody who has opened a page without a session: the provider, or how to sign in."""
        if request.method not in _READING:
            return self.how_to(_NOTHING_CHANGED)
        if self._openid and not came_through_proxy(request.scope):
            return RedirectResponse(BEGIN_PATH, _SEE_OTHER)
        return self.how_to(_NOT_SIGNED_IN)

    def foreign(self) -> Response:
        """The answer to a form that no page of this site has sent."""
        return self.how_to(_FOREIGN, _FORBIDDEN)

    def _link_for(self, viewer: Viewer) -> str:
        return f"{self._url}/enter/{self._links.issue(viewer)}"

    async def _make_link(self, request: Request) -> Response:
        """A link for the user whose credential the request carries: the command `flexo web` asks for it."""
        credential, purpose = request.headers.get(METADATA_KEY, ""), web_login.purpose(self._url)
        try:
            async with self._verifying:
                caller = await asyncio.to_thread(self._authenticator.verify, credential, purpose)
        except NotAuthentic as error:
            return JSONResponse({"error": str(error), "url": self._url}, _UNAUTHORIZED)
        viewer = Viewer(caller.uid, await asyncio.to_thread(_account, caller.uid))
        return JSONResponse({"link": self._link_for(viewer), "user": viewer.name, "expires_in_s": LINK_S})

    async def _ask_to_enter(self, request: Request) -> Response:
        """A button: programs that open links to preview them must not use a link up."""
        viewer = self._links.holder(request.path_params["token"])
        if viewer is None:
            return self.how_to(_USED)
        return HTMLResponse(self._views.sign_in("", viewer))

    async def _enter(self, request: Request) -> Response:
        """Use a link up, and begin a session."""
        if not self.is_own_page(request):
            return self.foreign()
        viewer = self._links.withdraw(request.path_params["token"])
        if viewer is None:
            return self.how_to(_USED)
        self._sessions.withdraw(request.cookies.get(self._cookie, ""))
        entered = RedirectResponse("/", _SEE_OTHER)
        entered.set_cookie(
            self._cookie,
            self._sessions.issue(viewer),
            max_age=int(SESSION_S),
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return entered

    async def _leave(self, request: Request) -> Response:
        """End the session."""
        if not self.is_own_page(request):
            return self.foreign()
        if came_through_proxy(request.scope):
            return self.how_to(_BY_PROXY, 200)
        self._sessions.withdraw(request.cookies.get(self._cookie, ""))
        left = self.how_to("You have signed out.", 200)
        left.delete_cookie(self._cookie, secure=self._secure, httponly=True, samesite="strict")
        return left


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
