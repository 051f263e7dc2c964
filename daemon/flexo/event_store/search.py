"""Finds events in the event store: the conditions of a search, and its SQL.

A search looks at a bounded number of entries, because nothing is written meanwhile. For older entries, the
caller searches again.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from flexo.events import OF_NODES
from flexo.model.queue import Principal
from flexo.words import names_in

ENTRIES_LOOKED_AT: Final = 20_000
"""The most entries that a search without an index looks at: a few hundredths of a second."""
LARGEST_NUMBER: Final = 2**63 - 1
"""The largest integer of SQLite. No job has this number, nor a larger one that a caller may ask for."""

Row = tuple[int, float, str, int | None, int, str]
"""The columns of a row: number, time, kind, job, its restarts (nothing if there is no job), text."""


@dataclass(frozen=True, slots=True)
class Search:
    """The conditions of a search. An omitted condition matches all entries."""

    job_id: int | None = None
    node: str = ""
    """Only entries whose text names this node."""
    kinds: tuple[str, ...] = ()
    since: float = 0.0
    before: int = 0
    """Only entries with a lower number; 0: from the newest entry on."""
    after: int = 0
    """Only entries with a higher number."""
    limit: int = 200
    owner: Principal | None = None
    """Only entries about jobs of this owner; None: all entries."""
    about_nodes: bool = True
    """Whether to include entries on nodes and their states."""
    routine: bool = False
    """Whether to include events that happen again and again. A kind in `kinds` is included in any case."""


def look(connection: sqlite3.Connection, search: Search, routine: str) -> tuple[list[Row], int, int]:
    """Search once. Returns the rows, newest first; the number before which nothing was looked at (0: nothing
    is left); and the newest number.

    `routine`: the kind that happens again and again.
    """
    newest = _number(connection, "SELECT max(id) FROM event")
    top = min(search.before - 1, newest) if search.before else newest
    bottom = _bottom(connection, search, top)
    conditions, values = _conditions(search, routine)
    query = (
        "SELECT id, at, kind, job_id, restart_count, text FROM event WHERE id <= ? AND id >= ?"
        f"{conditions} ORDER BY id DESC LIMIT ?"
    )
    connection.create_function("names", 2, lambda text, node: node in names_in(text), deterministic=True)
    rows: list[Row] = connection.execute(query, (top, bottom, *values, search.limit)).fetchall()
    return rows, _left(connection, search, rows, bottom), newest


def _bottom(connection: sqlite3.Connection, search: Search, top: int) -> int:
    """The lowest number to look at. For one job there is no bound, because an index finds its entries."""
    last = search.after + 1
    if search.job_id is not None:
        return last
    return max(last, top - ENTRIES_LOOKED_AT + 1)


def _conditions(search: Search, routine: str) -> tuple[str, list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    if search.job_id is not None:
        conditions.append("job_id = ?")
        values.append(min(search.job_id, LARGEST_NUMBER))
    if search.kinds:
        conditions.append(f"kind IN ({', '.join('?' * len(search.kinds))})")
        values.extend(search.kinds)
    elif not search.routine:
        conditions.append("kind != ?")
        values.append(routine)
    if not search.about_nodes:
        conditions.append("kind != ?")
        values.append(OF_NODES)
    if search.owner is not None:
        conditions.append("job_id IN (SELECT job_id FROM job_owner WHERE principal = ?)")
        values.append(search.owner)
    if search.since:
        conditions.append("at >= ?")
        values.append(search.since)
    if search.node:
        conditions.append("instr(text, ?) AND names(text, ?)")
        values.extend((search.node, search.node))
    return "".join(f" AND {each}" for each in conditions), values


def _left(connection: sqlite3.Connection, search: Search, rows: list[Row], bottom: int) -> int:
    """The number before which there may be more entries; 0: there are none."""
    reached = rows[-1][0] if len(rows) == search.limit else bottom
    oldest = _number(connection, "SELECT min(id) FROM event")
    if reached <= max(oldest, search.after + 1):
        return 0
    if search.since and not rows:
        latest = connection.execute(
            "SELECT max(at) FROM event WHERE id >= ? AND id < ?", (reached, reached + ENTRIES_LOOKED_AT)
        ).fetchone()[0]
        if latest is not None and latest < search.since:
            return 0
    return reached


def _number(connection: sqlite3.Connection, query: str) -> int:
    return connection.execute(query).fetchone()[0] or 0
