"""The templates' environment: it alone escapes what others wrote, for HTML and for the eye."""

from __future__ import annotations

import time
from typing import Final

import jinja2
from markupsafe import Markup

from flexo.words import duration
from flexo_cli.cost import hours_text
from flexo_cli.output import clock, printable
from flexo_web.chart import HEIGHT, WIDTH

_TIME: Final = Markup('<time datetime="{}" title="{}">{}</time>')
_BEGINNINGS: Final = ("job ", "with ", "it ", "its ", "the ", "by the ", "in the ", "satellites ", "without ")
"""How flexod's sentences on a job begin, if not with a name."""


def environment() -> jinja2.Environment:
    """The environment of all templates: a name that it does not know is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("flexo_web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["time"] = _time
    made.filters["hour"] = _hour
    made.filters["duration"] = duration
    made.filters["hours"] = _hours
    made.filters["sentence"] = _sentence
    made.globals["zone"] = _zone
    made.globals["WIDTH"], made.globals["HEIGHT"] = WIDTH, HEIGHT
    return made


def _plain(value: object) -> object:
    """Escape characters that could reverse or hide text. Jinja escapes those of HTML afterwards."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _hours(hours: float) -> str:
    """Hours for people, as `flexo cost` has them, but without digits that nobody reads: ``0``, ``0.04``,
    ``12.3``, ``1,234``."""
    if not hours:
        return "0"
    return f"{hours:,.0f}" if hours >= 1000 else hours_text(hours)


def _sentence(text: str) -> str:
    """flexod's sentence on a job, as one that stands alone. Other sentences may begin with a name."""
    return text[0].upper() + text[1:] if text.startswith(_BEGINNINGS) else text


def _time(at: float) -> Markup:
    """A time for people and programs; "" for 0."""
    if not at:
        return Markup()
    shown = clock(at).replace("T", " ")
    return _TIME.format(
        time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at)), f"{shown} {_zone(at)}", shown
    )


def _hour(at: float) -> str:
    """A time without its day: ``14:26:03``."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _zone(at: float | None = None) -> str:
    """The time zone of the pages' times at `at`, or now: ``CET, UTC+0100``."""
    return time.strftime("%Z, UTC%z", time.localtime(at))
