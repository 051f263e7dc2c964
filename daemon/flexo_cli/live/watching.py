"""The loop of `flexo top`: draw the newest picture and handle keys, until the user quits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from rich.console import Console

from flexo_cli.live.asking import Asking
from flexo_cli.live.layout import Cursor, Shown, nothing_yet, screen
from flexo_cli.live.picture import Picture
from flexo_cli.live.terminal import Terminal, whole_terminal

_DRAW_EVERY_S: Final = 0.5


def watch(console: Console, daemon: str | None, interval_s: float) -> None:
    """Run `flexo top` until `q` is pressed. Ctrl-C restores the terminal and raises KeyboardInterrupt."""
    asking = Asking(daemon, interval_s)
    place = Cursor()
    with whole_terminal(console) as terminal:
        while True:
            picture, away = asking.now
            shown = _draw(terminal, picture, away, place)
            for key in terminal.keys(_DRAW_EVERY_S):
                if key == "quit":
                    return
                place = moved(place, key, shown)


def _draw(terminal: Terminal, picture: Picture | None, away: str, place: Cursor) -> Shown:
    if picture is None:
        shown = Shown(nothing_yet(away), 0, 0)
    else:
        shown = screen(picture, terminal.size, place, away, time.time())
    terminal.draw(shown.lines)
    return shown


def moved(place: Cursor, key: str, shown: Shown) -> Cursor:
    """The cursor after `key`."""
    if key == "next":
        lists = shown.lists
        after = (lists.index(place.looked_at) + 1) % len(lists) if place.looked_at in lists else 0
        return Cursor(lists[after])
    page = max(1, shown.rows)
    steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "top": -place.first}
    last = max(0, shown.of - page)
    return replace(place, first=min(last, max(0, place.first + steps[key])))
