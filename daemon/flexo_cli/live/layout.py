"""Lays a picture of flexod out on a screen of any size. All functions are pure: from a picture to lines.

The head has facts about the whole cluster. Below it are the lists. The list that the user looks at gets the
rows that the others leave.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from flexo.words import duration
from flexo.words import workers as workers_of
from flexo_cli import job_words
from flexo_cli.caller import restart_notice
from flexo_cli.live.lists import GAP, List, Table, tables_of
from flexo_cli.live.picture import Picture
from flexo_cli.loans import lending_line
from flexo_cli.output import ago, printable
from flexo_protos.v1 import admin_pb2

_OTHERS_ROWS: Final = 3
"""Rows of a list that the user does not look at."""
_HEADINGS: Final = 2
"""Number of lines above a list."""
_LEAST_ROWS: Final = 6
"""Rows of all lists together. If there is room for fewer, only the list that the user looks at is shown."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The list that the user looks at, and the scroll position in it."""

    looked_at: List = List.JOBS
    first: int = 0
    """The first visible row of that list, from 0."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the screen, in characters."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The screen's lines."""

    lines: list[Text]
    rows: int
    """Visible rows of the list that the user looks at."""
    of: int
    """All rows of that list."""
    lists: tuple[List, ...] = (List.JOBS,)
    """The lists that there are."""


def screen(picture: Picture, size: Size, place: Cursor, away: str, now: float) -> Shown:
    """Lay `picture` out on a screen. `away`: why there is no newer picture, or ""."""
    head = [*_away(away, picture.at, now), *_head(picture, now)]
    tables = tables_of(picture, size.width, now)
    lists = tuple(tables)
    if place.looked_at not in tables:  # flexod lends no more, or no job waits any more
        place = Cursor()
    if size.height - len(head) - 1 < _HEADINGS * len(tables) + _LEAST_ROWS:
        tables = {which: table for which, table in tables.items() if which is place.looked_at}
    room = max(1, size.height - len(head) - 1 - _HEADINGS * len(tables))
    lines, shown, of = list(head), 0, 0
    rooms = _rooms(tables, place.looked_at, room)
    last = max(0, len(tables[place.looked_at].rows) - rooms[place.looked_at])
    place = replace(place, first=min(place.first, last))  # the list may have become shorter
    for which, table in tables.items():
        first = place.first if which is place.looked_at else 0
        lines += _list(table, first, rooms[which], which is place.looked_at)
        if which is place.looked_at:
            shown, of = min(rooms[which], len(table.rows) - first), len(table.rows)
    lines = lines[: size.height - 1]
    lines += [Text()] * (size.height - 1 - len(lines))
    lines.append(_foot(place, shown, of, lists))
    for line in lines:
        line.truncate(size.width, overflow="ellipsis")
    return Shown(lines, shown, of, lists)


def page(picture: Picture, width: int | None, now: float) -> list[Text]:
    """Lay out the whole picture, to print it once. `width` None: nothing is cut, and each node has a line."""
    lines = _head(picture, now)
    for table in tables_of(picture, width, now).values():
        lines += _list(table, 0, len(table.rows), False)
    if width:
        for line in lines:
            line.truncate(width, overflow="ellipsis")
    return lines


def nothing_yet(away: str) -> list[Text]:
    """The screen before the first picture."""
    return [Text(away or "asking flexod ...", style="red" if away else ""), Text(), Text("q quits", "dim")]


def _away(away: str, at: float, now: float) -> list[Text]:
    if not away:
        return []
    text = f" {ago(at, now)} old; trying again: {printable(away)}"
    return [Text(text, style="bold white on red", no_wrap=True)]


def _head(picture: Picture, now: float) -> list[Text]:
    status = picture.status
    mode = " (dry run)" if status.dry_run else ""
    software = status.software or "Slurm"
    cluster = f"{status.cluster}, {software} {status.slurm_version}" if status.cluster else "not known yet"
    lines = [
        _named("cluster", f"{cluster}, policy {status.policy}{mode}"),
        _named("GPUs", job_words.gpus(status)),
        _named("jobs", _jobs_line(picture.jobs)),
    ]
    if status.HasField("pool"):
        lines.append(_named("pool", job_words.pool(status.pool)))
    if status.HasField("lending"):
        lines.append(_named("loans", lending_line(status.lending)))
    lines.append(_named("next", _next(picture, now)))
    for gpu in status.slow_gpus:
        lines.append(_named("slow GPU", job_words.slow_gpu(gpu)))
    if status.trouble:
        lines.append(_named("trouble", status.trouble, "red"))
    if notice := restart_notice(status):
        lines.append(_named("restart", notice, "yellow"))
    return lines


def _named(name: str, text: str, style: str = "") -> Text:
    line = Text(f"{name:<9}", style="bold", no_wrap=True)
    return line.append(printable(text), style=style or "not bold")


def _jobs_line(reply: admin_pb2.ListJobsReply) -> str:
    """How many jobs there are, and their workers. They fit 80
    characters, unless one job resizes and another has no leader."""
    jobs = reply.jobs
    states = Counter(map(job_words.shown_state, jobs))
    counts = {
        "resizing": states[job_words.ShownState.RESIZING],
        "pending": len(reply.waiting),
        "without leader": states[job_words.ShownState.NO_LEADER],
    }
    workers = sum(job.workers for job in jobs)
    granted = sum(job.granted for job in jobs)
    most = sum(min(job.max, job.wanted or job.max) for job in jobs)
    some = "".join(f", {count} {what}" for what, count in counts.items() if count)
    return (
        f"{len(jobs)} run{'s' if len(jobs) == 1 else ''}{some};"
        f" {workers_of(workers)}, {granted} granted, {most} at most"
    )


def _next(picture: Picture, now: float) -> str:
    """The time of flexod's next poll, and the order in which it starts pending jobs."""
    status, order = picture.status, picture.nodes.order
    if not status.last_cycle_at:
        return "flexod has not seen the cluster yet"
    wait = status.last_cycle_at + status.interval_s - now
    look = f"looks again in {duration(wait)}" if wait >= 1 else "looks now"
    if wait < -2 * max(1.0, status.interval_s):
        look = f"last look {ago(status.last_cycle_at, now)} ago"
    if not order:
        return look
    return f"{look}; starts pending jobs in the order {' '.join(map(str, order[:50]))}"


def _rooms(tables: dict[List, Table], looked_at: List, room: int) -> dict[List, int]:
    """The number of rows for each list."""
    rooms = {
        which: min(len(table.rows), max(1, min(_OTHERS_ROWS, room // 4)))
        for which, table in tables.items()
        if which is not looked_at
    }
    rooms[looked_at] = min(len(tables[looked_at].rows), max(1, room - sum(rooms.values())))
    for which, table in tables.items():  # spare rows go to the other lists, from the top
        spare = room - sum(rooms.values())
        rooms[which] += max(0, min(spare, len(table.rows) - rooms[which]))
    return rooms


def _list(table: Table, first: int, room: int, looked_at: bool) -> list[Text]:
    """Title, names of columns, and visible rows. All rows count for the widths: no column jumps."""
    title = Text(f"{table.title}, {len(table.rows)}" if table.columns else table.title, no_wrap=True)
    title.stylize("bold reverse" if looked_at else "bold")
    if not table.columns:
        shown = table.rows[first : first + room]
        return [title, *(Text(GAP, no_wrap=True).join(row) for row in shown)]
    heads = tuple(Text(name, style="bold dim") for name in table.columns)
    everything = [heads, *table.rows]
    widths = [max(len(row[index]) for row in everything) for index in range(len(heads))]
    lines = [_row(row, widths, table) for row in (heads, *table.rows[first : first + room])]
    return [title, *lines]


def _row(row: tuple[Text, ...], widths: Sequence[int], table: Table) -> Text:
    cells = []
    for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padded = cell.copy()
        last = index == len(widths) - 1
        if table.columns[index] in table.right:
            padded.pad_left(width - len(cell))
        elif not last:
            padded.pad_right(width - len(cell))
        cells.append(padded)
    return Text(GAP, no_wrap=True).join(cells)


def _foot(place: Cursor, shown: int, of: int, lists: Sequence[List]) -> Text:
    rows = f"{place.first + 1}-{place.first + shown} of {of}" if of else "none"
    clock = time.strftime("%H:%M:%S")
    names = " ".join(each.value for each in lists)
    text = f"q quits   Tab: {names}   arrows: {place.looked_at.value} {rows}   {clock}"
    return Text(text, style="reverse", no_wrap=True)
