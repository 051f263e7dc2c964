"""flexo-web's pages over HTTP, for those who have signed in."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
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
from flexo_web.event_page import LARGEST
from flexo_web.feed import Client, Feed
from flexo_web.forms import TOKEN, BadForm, read_form
from flexo_web.harvest import Harvest
from flexo_web.idle import IdleLedger
from flexo_web.openid import OpenId
from flexo_web.pages import named_jobs
from flexo_web.privacy import Privacy
from flexo_web.refusals import RefusalLog
from flexo_web.security_headers import REPORT_POLICY, SecurityHeaders
from flexo_web.sign_in import SignIn
from flexo_web.steering import Said, Steering
from flexo_web.tokens import Viewer
from flexo_web.trusted_header import TrustedHeader
from flexo_web.updates import Updates
from flexo_web.views import (
    EVENTS,
    LOANS,
    MINE,
    NOW,
    SHARING,
    VALUE,
    WHAT_IF,
    Address,
    Views,
    of_event,
    of_job,
)
from flexo_web.whatif_page import Question, report, what_if_page

_LARGEST_JOB: Final = (1 << 64) - 1
_SEE_OTHER, _BAD_REQUEST, _NOT_FOUND, _TOO_MANY, _UNAVAILABLE = 303, 400, 404, 429, 503
_PAGES_OF_A_USER: Final = 8
"""The most pages of a user that are being made: some wait for flexod, in turn with those of others."""
_JOB: Final = "/jobs/{job_id:str}"
_DIGITS: Final = re.compile(r"[0-9]{1,20}")
_NOT_SIGNED_IN: Final = "You are not signed in."
_BARE: Final = "Not Found"
"""What starlette says of an address that no route has."""
_NO_PAGE: Final = "flexo has no page at this address."
_ELSE: Final = {
    "a job": ", and no elastic job that you may see has this name; of other jobs, the number leads to them",
    "an event": ": digits alone are allowed",
}
_QUOTED: Final = 40
"""The most characters of what somebody typed that an answer repeats."""
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
        reports: Path | None = None,
    ) -> None:
        """`connect`: makes a client of flexod. `authenticator`: verifies users' credentials. `url`: that
        of the pages. `proxy_header`: where a trusted proxy names the user; "": no proxy is trusted.
        `openid`: signs visitors in; None: no provider does. `reports`: the folder of what-if reports; None:
        there is none."""
        self._url = url
        self._proxy_header = proxy_header
        self._refusals = refusals or RefusalLog()
        self._reports = reports
        self._feed = Feed(Client(connect))
        self._idle = IdleLedger()
        self._steering = Steering(Client(connect))
        self._views = Views(Client(connect), Harvest(Client(connect)), self._idle, self._steering)
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
                *self._page("/loans", lambda request: LOANS),
                *self._page("/sharing", lambda request: SHARING),
                *self._page("/value", lambda request: VALUE),
                Route("/value.csv", self._limited(self._csv)),
                Route(WHAT_IF, self._limited(self._what_if)),
                Route(f"{WHAT_IF}/{{name:str}}", self._limited(self._report)),
                *self._page(_JOB, _job_of),
                Route(_JOB, self._limited(self._scale), methods=["POST"]),
                *self._page("/events", lambda request: EVENTS),
                *self._page("/events/{number:str}", _event_of),
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
            exception_handlers={_NOT_FOUND: self._show_missing},
            lifespan=self._taking_snapshots,
        )

    def _trusted_header(self) -> list[Middleware]:
        if not self._proxy_header:
            return []
        return [Middleware(TrustedHeader, header=self._proxy_header, log=self._refusals)]

    @asynccontextmanager
    async def _taking_snapshots(self, app: Starlette) -> AsyncIterator[None]:
        working = [asyncio.create_task(self._feed.run()), asyncio.create_task(self._count_idle())]
        try:
            yield
        finally:
            for task in working:
                task.cancel()

    async def _count_idle(self) -> None:
        """Add each snapshot to the ledger of idle GPUs."""
        number = 0
        while True:
            snapshot = await self._feed.after(number)
            number = snapshot.number
            if snapshot.picture is not None and snapshot.away is None:
                self._idle.add(snapshot.picture)

    def _page(self, path: str, address_of: Callable[[Request], Address]) -> list[Route]:
        """The routes of a page and of the stream that says when it has changed."""

        async def make(request: Request, viewer: Viewer) -> Response:
            return await self._made(address_of(request), viewer, request)

        async def tell_changes(request: Request) -> Response:
            viewer = self._sign_in.viewer(request)
            if viewer is None:
                return self._sign_in.how_to(_NOT_SIGNED_IN)
            return self._updates.stream(
                address_of(request), viewer, lambda: self._sign_in.viewer(request) is not None
            )

        return [Route(path, self._limited(make)), Route(f"/updates{path}", tell_changes)]

    def _limited(self, make: Callable[[Request, Viewer], Awaitable[Response]]) -> _Endpoint:
        """`make` for viewers who have signed in, and who have not too many requests under way."""

        async def show(request: Request) -> Response:
            viewer = self._sign_in.viewer(request)
            if viewer is None:
                return self._sign_in.entrance(request)
            if self._being_made[viewer.uid] >= _PAGES_OF_A_USER:
                text = f"too many requests at once: {_PAGES_OF_A_USER} of a user are allowed"
                return PlainTextResponse(text, _TOO_MANY)
            self._being_made[viewer.uid] += 1
            try:
                return await make(request, viewer)
            finally:
                self._being_made[viewer.uid] -= 1

        return show

    async def _made(self, address: Address, viewer: Viewer, request: Request, status: int = 200) -> Response:
        token = self._sign_in.form_token(request, address.path)
        content = await self._views.content(address, await self._feed.fresh(), viewer, token)
        html = self._views.whole(address, content, viewer)
        return HTMLResponse(html, status if content.found else _NOT_FOUND)

    async def _scale(self, request: Request, viewer: Viewer) -> Response:
        """Scale the viewer's job as the form of its page says. If that is done, the page is opened anew, so
        that a reload sends nothing twice; otherwise it says why not."""
        address = _job_of(request)
        if not self._sign_in.is_own_page(request):
            self._refusals.note(f"uid {viewer.uid}: a form to scale a job came from no page of this site")
            return self._sign_in.foreign()
        try:
            form = await read_form(request)
        except BadForm as error:
            return PlainTextResponse(f"{error}\n", _BAD_REQUEST)
        said = await self._asked(request, viewer, address, form)
        if said.done:
            return RedirectResponse(address.path, _SEE_OTHER)
        return await self._made(address, viewer, request, said.status)

    async def _asked(
        self, request: Request, viewer: Viewer, address: Address, form: Mapping[str, str]
    ) -> Said:
        picture = (await self._feed.fresh()).picture
        allowed = picture is not None and picture.status.web_steering
        if not allowed or not self._sign_in.is_own_form(request, address.path, form.get(TOKEN, "")):
            return self._steering.refuse(viewer, address.job_id, allowed=allowed)
        return await self._steering.scale(viewer, address.job_id, form.get("workers", ""))

    async def _csv(self, _: Request, viewer: Viewer) -> Response:
        """The GPU hours of the page Value, as a file."""
        text = await self._views.csv(await self._feed.fresh(), viewer)
        if text is None:
            return PlainTextResponse("flexod has not answered yet", _UNAVAILABLE)
        named = {"Content-Disposition": 'attachment; filename="flexo-gpu-hours.csv"'}
        return Response(text, media_type="text/csv", headers=named)

    async def _what_if(self, request: Request, viewer: Viewer) -> Response:
        """The site's reports, and the commands that make one."""
        question = Question.of(request.query_params)
        page = await asyncio.to_thread(what_if_page, self._reports, question)
        return HTMLResponse(self._views.what_if(page, viewer))

    async def _report(self, request: Request, _: Viewer) -> Response:
        """One of the site's reports, in a sandbox: it has styles of its own, and can do nothing."""
        found = await asyncio.to_thread(report, self._reports, request.path_params["name"])
        if found is None:
            raise HTTPException(_NOT_FOUND, "This site has no such report.")
        return HTMLResponse(found, headers={"Content-Security-Policy": REPORT_POLICY})

    async def _look_up(self, request: Request) -> Response:
        """The page of the job whose number or name somebody has typed."""
        typed = request.query_params.get("id", "").strip()
        if not typed:
            return RedirectResponse(NOW.path, _SEE_OTHER)
        if (viewer := self._sign_in.viewer(request)) is not None and not typed.isdecimal():
            named = named_jobs(typed, Privacy((await self._feed.fresh()).picture, viewer).picture())
            if len(named) == 1:
                return RedirectResponse(of_job(named[0]).path, _SEE_OTHER)
            if named:
                shown = ", ".join(map(str, named[:_QUOTED]))
                text = f"Several jobs have this name. Type the number of one: {shown}."
                raise HTTPException(_NOT_FOUND, text)
        return RedirectResponse(of_job(_checked(typed, "a job", _LARGEST_JOB)).path, _SEE_OTHER)

    async def _show_missing(self, request: Request, error: Exception) -> Response:
        """The answer to an address that no page has."""
        why = error.detail if isinstance(error, HTTPException) and error.detail != _BARE else _NO_PAGE
        viewer = self._sign_in.viewer(request)
        if viewer is None:
            return self._sign_in.how_to(why, _NOT_FOUND)
        return HTMLResponse(self._views.missing(why, viewer), _NOT_FOUND)


def _event_of(request: Request) -> Address:
    return of_event(_checked(request.path_params["number"], "an event", LARGEST))


def _job_of(request: Request) -> Address:
    return of_job(_checked(request.path_params["job_id"], "a job", _LARGEST_JOB))


def _checked(text: str, of: str, largest: int) -> int:
    """The number of something that somebody wrote. Raises HTTPException: it is none."""
    number = _number(text, largest)
    if number is None:
        shown = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
        raise HTTPException(_NOT_FOUND, f"'{shown}' is no number of {of}{_ELSE[of]}.")
    return number


def _number(text: str, largest: int) -> int | None:
    """The number from 1 to `largest` that somebody wrote; None: it is none.

    Python refuses to convert thousands of digits, and says so with an error.
    """
    number = int(text) if _DIGITS.fullmatch(text) else 0
    return number if 0 < number <= largest else None
