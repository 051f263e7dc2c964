"""Debian's Chromium as people use it: in windows of several sizes and both themes, with what went wrong."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CHROMIUM: Final = "chromium"
_PAINTED: Final = (
    "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
)
"""Milliseconds from the start of the navigation until a frame was painted after now."""


class Window(enum.Enum):
    """A size of windows, in CSS pixels."""

    PHONE = (390, 844)
    WIDE = (1440, 900)
    WALL = (2560, 1440)


class Theme(enum.StrEnum):
    """What people have told their browser."""

    LIGHT = "light"
    DARK = "dark"


@dataclass
class Seen:
    """A page that is open, with what its browser complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors of scripts, refusals by the Content-Security-Policy, and dialogs that opened."""

    def enter(self, link: str) -> None:
        """Use a one-time link."""
        self.page.goto(link)
        self.page.get_by_role("button", name="Enter as").click()
        self.page.wait_for_selector("#header")

    def painted_ms(self, url: str) -> float:
        """Milliseconds from the start of a navigation to `url` until all of it was painted."""
        self.page.goto(url, wait_until="load")
        return float(self.page.evaluate(_PAINTED))

    def violations(self) -> list[str]:
        """What axe-core finds on the page."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
            for each in found
        ]

    def mark(self) -> None:
        """Leave a mark that a reload would remove."""
        self.page.evaluate("() => { window.marked = true; }")

    @property
    def marked(self) -> bool:
        """Whether the page was not reloaded since it was marked."""
        return bool(self.page.evaluate("() => window.marked === true"))


class Browsers:
    """Opens pages, each with cookies of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def open(
        self, window: Window = Window.WIDE, theme: Theme = Theme.LIGHT, *, scripts: bool = True
    ) -> Iterator[Seen]:
        """An empty page in a window of its own. `scripts`: whether pages' scripts run."""
        width, height = window.value
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme.value,
            device_scale_factor=1,
            java_script_enabled=scripts,
        )
        seen = Seen(context.new_page())
        seen.page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        seen.page.on("console", lambda message: _note(seen, message))
        seen.page.on("dialog", lambda dialog: (seen.complaints.append("dialog"), dialog.dismiss()))
        try:
            yield seen
        finally:
            context.close()


def _note(seen: Seen, message: ConsoleMessage) -> None:
    if message.type == "error" and "Failed to load resource" not in message.text:
        seen.complaints.append(f"console: {message.text}")


@contextmanager
def browsers() -> Iterator[Browsers]:
    """A Chromium. Its own sandbox needs user namespaces, which containers often do not have."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=f"/usr/bin/{CHROMIUM}", args=["--no-sandbox"])
        try:
            yield Browsers(browser)
        finally:
            browser.close()
