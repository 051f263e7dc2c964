"""Limits the bytes of the events: removes the oldest entries, first those of the job that has most.

So one job that makes events without end loses its own history, not that of others. The other contents of the
file are bounded where they are written, and cost a quarter of the history at most.
"""

from __future__ import annotations

import sqlite3
from typing import Final

_EVENTS_ALONE: Final = 3 / 4
"""The part of the file that events may use in any case, whatever else is in the file."""
_AT_ONCE: Final = 20_000
"""The entries that one call removes: a few hundredths of a second, in which nothing else is written."""
_SHARE: Final = 10
"""A job with more than one in this number of all entries loses its own first."""


_ROW: Final = 16
"""The bytes that SQLite adds to a row, about."""
_SAMPLE: Final = 100
"""The number of rows of a table whose sizes stand for the sizes of all rows."""


def used_bytes(connection: sqlite3.Connection) -> int:
    """The bytes of the file that hold something. SQLite fills the others before the file grows."""
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _bytes_of_others(connection: sqlite3.Connection) -> int:
    """The bytes, about, that hold neither events nor their snapshots."""
    tables = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('event', 'snapshot')"
    ).fetchall()
    return sum(_bytes_of(connection, name) for (name,) in tables)


def _bytes_of(connection: sqlite3.Connection, table: str) -> int:
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    each = " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for _, name, *_ in columns)
    key = " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for _, name, *_, part in columns if part)
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    (row,) = connection.execute(
        f"SELECT avg({each} + {key or 0}) FROM (SELECT * FROM {table} LIMIT {_SAMPLE})"
    ).fetchone()
    return int(count * ((row or 0.0) + _ROW * (2 if key else 1)))


def make_room(connection: sqlite3.Connection, most_bytes: int, written: int) -> int:
    """Remove old entries if there are too many bytes, in the transaction that has written `written` new ones.

    Returns the number of removed entries. If one call is not enough, further calls remove more.
    """
    if used_bytes(connection) <= most_bytes:
        return 0
    others = _bytes_of_others(connection)
    for_events = max(most_bytes - others, most_bytes * _EVENTS_ALONE)
    if used_bytes(connection) - others <= for_events:
        return 0
    at_once = max(_AT_ONCE, 2 * written)
    removed = _remove_of_the_largest(connection, at_once) or _remove_oldest(connection, at_once)
    oldest = connection.execute(
        "SELECT snapshot_id FROM event WHERE snapshot_id IS NOT NULL ORDER BY id LIMIT 1"
    ).fetchone()
    connection.execute("DELETE FROM snapshot WHERE id < ?", (oldest[0] if oldest else 1 << 62,))
    if used_bytes(connection) - others > for_events:  # few events, of large snapshots
        connection.execute(
            "DELETE FROM snapshot WHERE id <= (SELECT (9 * min(id) + max(id)) / 10 FROM snapshot)"
        )
    return removed


def _remove_of_the_largest(connection: sqlite3.Connection, at_once: int) -> int:
    """Remove the oldest entries of the job that has most, if that is more than its share. Returns their
    number."""
    (all_of_them,) = connection.execute("SELECT count(*) FROM event").fetchone()
    largest = connection.execute(
        "SELECT job_id, count(*) FROM event WHERE job_id IS NOT NULL"
        " GROUP BY job_id ORDER BY count(*) DESC LIMIT 1"
    ).fetchone()
    if largest is None or largest[1] * _SHARE <= all_of_them:
        return 0
    job_id, count = largest
    excess = min(at_once, count - all_of_them // _SHARE)
    return connection.execute(
        "DELETE FROM event WHERE id IN (SELECT id FROM event WHERE job_id = ? ORDER BY id LIMIT ?)",
        (job_id, excess),
    ).rowcount


def _remove_oldest(connection: sqlite3.Connection, at_once: int) -> int:
    """Remove the oldest tenth of all entries, or `at_once` if that is less. Returns their number."""
    (count,) = connection.execute("SELECT count(*) FROM event").fetchone()
    return connection.execute(
        "DELETE FROM event WHERE id IN (SELECT id FROM event ORDER BY id LIMIT ?)",
        (min(at_once, count // _SHARE + 1),),
    ).rowcount
