"""Renders pages, each once a snapshot for all who see the same."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.answers import Answers
from flexo_web.event_page import EventPage, Past, ShownEvent, ask_event, ask_newest, event_page, shown_events
from flexo_web.explained import Explained, ask_reasons
from flexo_web.feed import Client, Snapshot
from flexo_web.harvest import Harvest
from flexo_web.idle import IdleLedger
from flexo_web.job_page import job_page
from flexo_web.loan_page import LoanHistory, Loans, ask_history, loan_page
from flexo_web.pages import Mine, Now, first_waiting, mine_page, now_page
from flexo_web.privacy import NOT_A_READER, Privacy
from flexo_web.rendering import environment
from flexo_web.sharing_page import Sharing, sharing_page
from flexo_web.steering import Steering, steerable
from flexo_web.tokens import Viewer
from flexo_web.value_page import Value, as_csv, value_page
from flexo_web.whatif_page import WhatIf

_NOW: Final = "/"
_MINE: Final = "/mine"
_LOANS: Final = "/loans"
_SHARING: Final = "/sharing"
_VALUE: Final = "/value"
WHAT_IF: Final = "/what-if"
_EVENTS: Final = "/events"
_JOBS: Final = "/jobs/"
_TITLES: Final[Mapping[str, str]] = {
    _NOW: "Now",
    _MINE: "Mine and waiting",
    _LOANS: "Loans",
    _SHARING: "Sharing",
    _VALUE: "Value",
    WHAT_IF: "What if",
    _EVENTS: "Events",
}
"""The pages in the navigation."""
_MISSING: Final = "No such page"
_HISTORY_S: Final = 5.0
"""How long what is known of past loans and of reasons is good for."""
_HEADLINE_WITHIN_S: Final = 1.0
"""The longest wait for what pending jobs need, of which flexod is asked one by one."""
_EVENT_S: Final = 30.0
"""How long an event is good for: it never changes, but it may be one to come, or removed some day."""
_Page = Now | Mine | Loans | Sharing | Value | EventPage | tuple[ShownEvent, ...] | None


@dataclass(frozen=True, slots=True)
class Address:
    """One of the pages that change."""

    path: str
    job_id: int = 0
    """0: it is about no single job."""
    event: int = 0
    """0: it is about no single event."""

    @property
    def updates(self) -> str:
        """Path of the stream that says when the page has changed."""
        return f"/updates{self.path}"

    @property
    def title(self) -> str:
        """The title of the page."""
        if self.event:
            return f"Event {self.event}"
        return f"Job {self.job_id}" if self.job_id else _TITLES[self.path]


NOW: Final = Address(_NOW)
MINE: Final = Address(_MINE)
LOANS: Final = Address(_LOANS)
SHARING: Final = Address(_SHARING)
VALUE: Final = Address(_VALUE)
EVENTS: Final = Address(_EVENTS)


_TEMPLATES: Final[Mapping[Address, str]] = {
    NOW: "now.html",
    MINE: "mine.html",
    LOANS: "loans.html",
    SHARING: "sharing.html",
    VALUE: "value.html",
    EVENTS: "events.html",
}


def of_job(job_id: int) -> Address:
    """The page of a job."""
    return Address(f"{_JOBS}{job_id}", job_id=job_id)


def of_event(number: int) -> Address:
    """The page of an event."""
    return Address(f"{_EVENTS}/{number}", event=number)


@dataclass(frozen=True, slots=True)
class Content:
    """What changes on a page."""

    banners: Markup
    main: Markup
    found: bool = True
    """False: there is no such job or event."""

    @property
    def digest(self) -> str:
        """It differs if the content does."""
        return hashlib.sha256(f"{self.banners}\0{self.main}".encode()).hexdigest()[:16]


class Views:
    """The pages as HTML. A page that several viewers look at is rendered once a snapshot."""

    def __init__(
        self,
        client: Client,
        harvest: Harvest,
        ledger: IdleLedger,
        steering: Steering,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`client`: for questions about single pages. `ledger`: of idle GPUs; somebody else adds to it.
        `steering`: knows what became of viewers' requests."""
        self._explanations: Answers[int, admin_pb2.ExplainJobReply] = Answers(
            client, lambda daemon, job_id: daemon.explain(job_id)
        )
        self._headlines: Answers[int, admin_pb2.ExplainJobReply] = Answers(
            client, lambda daemon, job_id: daemon.explain(job_id), _HISTORY_S
        )
        """Asked for less often than by a job's own page: one viewer may have several jobs that wait."""
        self._loans: Answers[str, LoanHistory] = Answers(client, ask_history, _HISTORY_S)
        self._reasons: Answers[str, tuple[admin_pb2.Event, ...]] = Answers(client, ask_reasons, _HISTORY_S)
        self._events: Answers[int, Past] = Answers(client, ask_event, _EVENT_S)
        self._newest: Answers[str, tuple[admin_pb2.Event, ...]] = Answers(client, ask_newest, _HISTORY_S)
        self._harvest = harvest
        self._ledger = ledger
        self._steering = steering
        self._clock = clock
        self._templates = environment()
        self._makers: Mapping[Address, Callable[[Picture, Privacy, Viewer], Awaitable[_Page]]] = {
            NOW: self._now,
            MINE: self._mine,
            LOANS: self._loan_page,
            SHARING: self._sharing,
            VALUE: self._value,
            EVENTS: self._all_events,
        }
        self._rendered: dict[tuple[Address, str, bool], Content] = {}
        self._rendered_of = 0
        """The number of the snapshot that `_rendered` is of."""

    async def content(
        self, address: Address, snapshot: Snapshot, viewer: Viewer, form_token: str = ""
    ) -> Content:
        """What `viewer` sees at `address`. `form_token`: that of the form; "": for the digest alone."""
        privacy = Privacy(snapshot.picture, viewer)
        if address.job_id:
            return await self._job(address, snapshot, privacy, viewer, form_token)
        if address.event:
            return await self._event(address, snapshot, privacy)
        if self._rendered_of != snapshot.number:
            self._rendered.clear()
            self._rendered_of = snapshot.number
        user = viewer.name if address == MINE or privacy.hides_nodes else privacy.viewer
        key = address, user, privacy.sees_all
        known = self._rendered.get(key)
        if known is None:
            known = await self._of_snapshot(address, snapshot, privacy, viewer)
            if self._rendered_of == snapshot.number:
                self._rendered[key] = known
        return known

    def whole(self, address: Address, content: Content, viewer: Viewer) -> str:
        """The whole page."""
        return self._live(address.title, address.path, address.updates, viewer, content.banners, content.main)

    def what_if(self, page: WhatIf, viewer: Viewer) -> str:
        """The whole page of what-ifs, which does not change while somebody looks."""
        main = Markup(self._templates.get_template("whatif.html").render(page=page))
        return self._live(_TITLES[WHAT_IF], WHAT_IF, "", viewer, Markup(), main)

    def missing(self, why: str, viewer: Viewer) -> str:
        """The whole page for an address that no page has. `why`: what is wrong with the address."""
        main = Markup(self._templates.get_template("missing.html").render(why=why))
        return self._live(_MISSING, "", "", viewer, Markup(), main)

    def sign_in(self, why: str, viewer: Viewer | None) -> str:
        """The page that says how to sign in; with `viewer`, the button to enter as that user."""
        return self._templates.get_template("enter.html").render(why=why, viewer=viewer)

    async def csv(self, snapshot: Snapshot, viewer: Viewer) -> str | None:
        """The GPU hours of the page Value as CSV; None: flexod has not answered yet."""
        if snapshot.picture is None:
            return None
        self._harvest.look()
        await self._harvest.wait()
        return as_csv(snapshot.picture, self._harvest, self._ledger, Privacy(snapshot.picture, viewer))

    def _live(
        self, title: str, path: str, updates: str, viewer: Viewer, banners: Markup, main: Markup
    ) -> str:
        return self._templates.get_template("live.html").render(
            title=title,
            here=path,
            pages=_TITLES,
            updates=updates,
            viewer=viewer,
            banners=banners,
            content=main,
        )

    async def _of_snapshot(
        self, address: Address, snapshot: Snapshot, privacy: Privacy, viewer: Viewer
    ) -> Content:
        picture = snapshot.picture
        page = None if picture is None else await self._makers[address](picture, privacy, viewer)
        template = _TEMPLATES[address]
        return Content(await self._banners(snapshot, privacy), self._main(template, page, viewer.name))

    async def _now(self, picture: Picture, privacy: Privacy, _: Viewer) -> Now:
        return now_page(picture, privacy, await self._explained(privacy))

    async def _mine(self, picture: Picture, privacy: Privacy, viewer: Viewer) -> Mine:
        shown = privacy.picture() or picture
        asked = first_waiting(shown, viewer.name)
        told = await asyncio.gather(*(self._reason(job_id, privacy) for job_id in asked))
        reasons = dict(zip(asked, told, strict=True))
        return mine_page(shown, viewer.name, await self._explained(privacy), reasons)

    async def _reason(self, job_id: int, privacy: Privacy) -> str:
        """What flexod says that a job waits for; "": it takes long, and the page does not wait for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEADLINE_WITHIN_S):
                reply = (await self._headlines.of(job_id)).reply
                return privacy.text(reply.reason) if reply else ""
        return ""

    async def _explained(self, privacy: Privacy) -> Explained:
        """The events that explain something of jobs. Without flexod's answer: none."""
        events = (await self._reasons.of("")).reply or ()
        return Explained(event for event in events if privacy.of_event(event))

    async def _loan_page(self, picture: Picture, privacy: Privacy, _: Viewer) -> Loans:
        history = await self._loans.of("")
        past = None if privacy.hides_nodes else history.reply
        return loan_page((privacy.picture() or picture).loans, past)

    async def _sharing(self, picture: Picture, privacy: Privacy, _: Viewer) -> Sharing:
        return sharing_page(picture, privacy)

    async def _value(self, picture: Picture, privacy: Privacy, _: Viewer) -> Value:
        self._harvest.look()
        explained = await self._explained(privacy)
        return value_page(picture, self._harvest, self._ledger, privacy, explained)

    async def _all_events(self, _: Picture, privacy: Privacy, __: Viewer) -> tuple[ShownEvent, ...]:
        return shown_events((await self._newest.of("")).reply or (), privacy)

    async def _job(
        self, address: Address, snapshot: Snapshot, privacy: Privacy, viewer: Viewer, form_token: str
    ) -> Content:
        explained = await self._explanations.of(address.job_id)
        page = job_page(privacy.picture(), address.job_id, explained, privacy, self._clock())
        main = self._templates.get_template("job.html").render(
            page=page,
            path=address.path,
            steerable=steerable(snapshot.picture, address.job_id, viewer),
            said=self._steering.said(viewer, address.job_id),
            form_token=form_token,
        )
        return Content(await self._banners(snapshot, privacy), Markup(main), found=not page.unknown)

    async def _event(self, address: Address, snapshot: Snapshot, privacy: Privacy) -> Content:
        answer = await self._events.of(address.event)
        page = event_page(address.event, answer.reply, answer.refusal, privacy)
        return Content(
            await self._banners(snapshot, privacy), self._main("event.html", page, ""), found=not page.unknown
        )

    def _main(self, template: str, page: _Page, user: str) -> Markup:
        return Markup(self._templates.get_template(template).render(page=page, user=user))

    async def _banners(self, snapshot: Snapshot, privacy: Privacy) -> Markup:
        reported = (*privacy.troubles(), *((NOT_A_READER,) if privacy.is_untold else ()))
        explained = await self._explained(privacy) if reported else Explained()
        return Markup(
            self._templates.get_template("banners.html").render(
                away=snapshot.away,
                known=snapshot.picture is not None,
                troubles=[explained.trouble(text) for text in reported],
            )
        )
