"""Renders pages, each once a snapshot for all who see the same."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from flexo_cli.live.picture import Picture
from flexo_web.explanations import Explanations
from flexo_web.feed import Snapshot
from flexo_web.pages import JobPage, Mine, Now, job_page, mine_page, now_page
from flexo_web.privacy import explained_to, seen_by, sees_all
from flexo_web.rendering import environment
from flexo_web.tokens import Viewer

_NOW: Final = "/"
_MINE: Final = "/mine"
_JOBS: Final = "/jobs/"


@dataclass(frozen=True, slots=True)
class Address:
    """One of the pages."""

    path: str
    job_id: int = 0
    """0: it is about no single job."""

    @property
    def updates(self) -> str:
        """Path of the stream that says when the page has changed."""
        return f"/updates{self.path}"

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"Job {self.job_id}" if self.job_id else {_NOW: "Now", _MINE: "Mine and waiting"}[self.path]


NOW: Final = Address(_NOW)
MINE: Final = Address(_MINE)


def of_job(job_id: int) -> Address:
    """The page of a job."""
    return Address(f"{_JOBS}{job_id}", job_id)


@dataclass(frozen=True, slots=True)
class Content:
    """What changes on a page."""

    banners: Markup
    main: Markup
    found: bool = True
    """False: there is no such job."""

    @property
    def digest(self) -> str:
        """It differs if the content does."""
        return hashlib.sha256(f"{self.banners}\0{self.main}".encode()).hexdigest()[:16]


class Views:
    """The pages as HTML. A page that several viewers look at is rendered once a snapshot."""

    def __init__(self, explanations: Explanations, clock: Callable[[], float] = time.time) -> None:
        self._explanations = explanations
        self._clock = clock
        self._templates = environment()
        self._rendered: dict[tuple[Address, str], Content] = {}
        self._rendered_of = 0
        """The number of the snapshot that `_rendered` is of."""

    async def content(self, address: Address, snapshot: Snapshot, viewer: Viewer) -> Content:
        """What `viewer` sees at `address`."""
        if address.job_id:
            return await self._job(address, snapshot, viewer)
        if self._rendered_of != snapshot.number:
            self._rendered.clear()
            self._rendered_of = snapshot.number
        shared = address != MINE and sees_all(snapshot.picture, viewer)
        key = address, "" if shared else viewer.name
        known = self._rendered.get(key)
        if known is None:
            known = self._rendered[key] = self._of_snapshot(address, snapshot, viewer)
        return known

    def whole(self, address: Address, content: Content, viewer: Viewer) -> str:
        """The whole page."""
        return self._templates.get_template("live.html").render(
            title=address.title,
            here=address.path,
            updates=address.updates,
            viewer=viewer,
            banners=content.banners,
            content=content.main,
        )

    def sign_in(self, why: str, viewer: Viewer | None) -> str:
        """The page that says how to sign in; with `viewer`, the button to enter as that user."""
        return self._templates.get_template("enter.html").render(why=why, viewer=viewer)

    def _of_snapshot(self, address: Address, snapshot: Snapshot, viewer: Viewer) -> Content:
        picture = None if snapshot.picture is None else seen_by(snapshot.picture, viewer)
        page: Now | Mine | None = None
        if picture is not None:
            page = mine_page(picture, viewer.name) if address == MINE else now_page(picture)
        template = "mine.html" if address == MINE else "now.html"
        return Content(self._banners(snapshot, picture), self._main(template, page, viewer.name))

    async def _job(self, address: Address, snapshot: Snapshot, viewer: Viewer) -> Content:
        picture = None if snapshot.picture is None else seen_by(snapshot.picture, viewer)
        said = await self._explanations.of(address.job_id)
        explained = explained_to(said, address.job_id, snapshot.picture, viewer)
        page = job_page(picture, address.job_id, explained, self._clock())
        return Content(
            self._banners(snapshot, picture), self._main("job.html", page, ""), found=not page.unknown
        )

    def _main(self, template: str, page: Now | Mine | JobPage | None, user: str) -> Markup:
        return Markup(self._templates.get_template(template).render(page=page, user=user))

    def _banners(self, snapshot: Snapshot, picture: Picture | None) -> Markup:
        return Markup(
            self._templates.get_template("banners.html").render(
                away=snapshot.away,
                known=picture is not None,
                trouble=picture.status.trouble if picture else "",
            )
        )
