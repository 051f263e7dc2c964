"""The file of the event store: its tables by version, the way to open it, and the check for damage."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from flexo.event_store import job_owners, stored_grants, stored_trials

_SCHEMA_1: Final = (
    "CREATE TABLE snapshot (id INTEGER PRIMARY KEY, at REAL NOT NULL, facts TEXT NOT NULL)",
    "CREATE TABLE event (id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, job_id INTEGER,"
    " restart_count INTEGER, text TEXT NOT NULL, snapshot_id INTEGER REFERENCES snapshot (id))",
    "CREATE INDEX event_by_job ON event (job_id, id)",
    "CREATE INDEX event_by_time ON event (at)",
    "CREATE TABLE cap (job_id INTEGER, restart_count INTEGER, workers INTEGER NOT NULL,"
    " PRIMARY KEY (job_id, restart_count))",
)
_SCHEMA_2: Final = (
    "CREATE TABLE scaling (job_id INTEGER, restart_count INTEGER, workers INTEGER,"
    " samples_per_s REAL NOT NULL, step_s REAL NOT NULL, sync_s REAL NOT NULL,"
    " efficiency REAL NOT NULL, batches INTEGER NOT NULL, measured_at REAL NOT NULL,"
    " PRIMARY KEY (job_id, restart_count, workers))",
    "CREATE TABLE slow_gpu (node TEXT, gpus TEXT, ratio REAL NOT NULL, job_id INTEGER NOT NULL,"
    " restart_count INTEGER NOT NULL, seen_at REAL NOT NULL, until_at REAL NOT NULL,"
    " PRIMARY KEY (node, gpus))",
)
_SCHEMA_3: Final = (
    "CREATE TABLE running_time (user TEXT NOT NULL, gpus INTEGER NOT NULL, seconds REAL NOT NULL,"
    " ended_at REAL NOT NULL)",
    "CREATE INDEX running_time_by_end ON running_time (ended_at)",
)
_SCHEMA_4: Final = (
    "CREATE TABLE priority (job_id INTEGER NOT NULL, restart_count INTEGER NOT NULL,"
    " priority INTEGER NOT NULL, PRIMARY KEY (job_id, restart_count))",
)
_SCHEMA_5: Final = ("CREATE TABLE demand (at REAL PRIMARY KEY, servers REAL NOT NULL, source TEXT NOT NULL)",)
_SCHEMA_6: Final = (
    "CREATE TABLE loan (node TEXT PRIMARY KEY, since_at REAL NOT NULL, why TEXT NOT NULL,"
    " state TEXT NOT NULL, called_back_at REAL, deadline_at REAL, why_back TEXT NOT NULL)",
    "CREATE TABLE past_loan (id INTEGER PRIMARY KEY, node TEXT NOT NULL, since_at REAL NOT NULL,"
    " why TEXT NOT NULL, called_back_at REAL, deadline_at REAL, why_back TEXT NOT NULL,"
    " empty_at REAL NOT NULL, ended_at REAL NOT NULL, workers_scaled_in INTEGER NOT NULL,"
    " bases_preempted INTEGER NOT NULL)",
    "CREATE INDEX past_loan_by_end ON past_loan (ended_at)",
)
_SCHEMA_7: Final = ("CREATE TABLE writer (epoch INTEGER NOT NULL)",)
_SCHEMA_8: Final = (
    "ALTER TABLE loan ADD COLUMN workers_scaled_in INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE loan ADD COLUMN bases_preempted INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE loan ADD COLUMN servers_emptied_beside INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE past_loan ADD COLUMN servers_emptied_beside INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE left_alone (node TEXT PRIMARY KEY, until_at REAL NOT NULL)",
)
_SCHEMA_10: Final = (
    "CREATE TABLE slow_gpu_of (node TEXT, gpus TEXT, user TEXT, ratio REAL NOT NULL, job_id INTEGER NOT NULL,"
    " restart_count INTEGER NOT NULL, seen_at REAL NOT NULL, until_at REAL NOT NULL,"
    " PRIMARY KEY (node, gpus, user))",
    "INSERT INTO slow_gpu_of SELECT node, gpus, '', ratio, job_id, restart_count, seen_at, until_at"
    " FROM slow_gpu",
    "DROP TABLE slow_gpu",
    "ALTER TABLE slow_gpu_of RENAME TO slow_gpu",
)
_SCHEMA_13: Final = ("ALTER TABLE cap ADD COLUMN nodes TEXT NOT NULL DEFAULT ''",)
_SCHEMA_14: Final = ("ALTER TABLE cap ADD COLUMN who TEXT NOT NULL DEFAULT ''",)
SCHEMAS: Final = (
    *(_SCHEMA_1, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4),
    *(_SCHEMA_5, _SCHEMA_6, _SCHEMA_7, _SCHEMA_8),
    stored_grants.SCHEMA,
    _SCHEMA_10,
    job_owners.SCHEMA,
    stored_trials.SCHEMA,
    _SCHEMA_13,
    _SCHEMA_14,
)
"""The statements of each version, which change the version before into it."""
VERSION: Final = len(SCHEMAS)
_GRANTS_SINCE: Final = 9
"""The first version that keeps grants."""

_OF_TWO_KINDS: Final = (("issued_grant", "user_id"), ("issued_grant", "gpus"))
"""The columns that may have a text instead of a number: a principal that is no uid, and resources that older
releases do not know (stored_grants)."""
_PRIMARY_CODE: Final = 0xFF
"""The bits of SQLite's extended error codes that say what kind of error it is (sqlite.org/rescode.html)."""


def last_writer(connection: sqlite3.Connection, epoch: int) -> int | None:
    """The epoch of the flexod that wrote the file last. Raises _Replaced if it is later than `epoch`."""
    newest: int | None
    (newest,) = connection.execute("SELECT max(epoch) FROM writer").fetchone()
    if newest is not None and newest > epoch:
        raise _Replaced(f"another flexod writes it (epoch {newest})")
    return newest


def open_file(path: Path, epoch: int) -> sqlite3.Connection:
    """Open the event store, and upgrade its tables. Raises sqlite3.DatabaseError if the file is no good one.

    With an `epoch`, several hosts take turns with the file. It then has no WAL, which needs memory that hosts
    do not share (sqlite.org/wal.html).
    """
    shared = epoch > 0
    if not path.exists():
        with suppress(OSError):  # SQLite's own error is better
            path.touch(0o640)  # users' jobs stand in it; SQLite gives its other files the same mode
    # The holder of a shared file has been stopped: there is nothing to wait for.
    patience_s = 1.0 if shared else 5.0
    connection = sqlite3.connect(path, timeout=patience_s, check_same_thread=False)
    connection.text_factory = _text
    try:
        connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if shared else 'WAL'}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if shared else 'NORMAL'}")
        _check(connection)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < VERSION:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for statement in chain.from_iterable(SCHEMAS[version:]):
                    connection.execute(statement)
                if 0 < version < _GRANTS_SINCE:
                    stored_grants.take_from_events(connection)
                connection.execute(f"PRAGMA user_version = {VERSION}")
        elif version > VERSION:
            if shared:  # a flexod replaced during an upgrade puts nothing aside
                last_writer(connection, epoch)
            raise Newer(version)
        _check_kinds(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class _Replaced(sqlite3.OperationalError):
    """Another flexod is the active one, and owns the event store."""


class _Damaged(sqlite3.DatabaseError):
    """A file that SQLite opens, but that is no event store of flexod's."""


class Newer(_Damaged):
    """A newer flexod wrote the file, and this one has taken its place."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it is of version {version}, this flexod writes version {VERSION}")
        self.version = version


def _text(raw: bytes) -> str:
    """Decode a text. A byte that the disk has changed costs one letter of history, not all of it."""
    return raw.decode("utf-8", "replace")


def _check(connection: sqlite3.Connection) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _Damaged(str(verdict))


def _check_kinds(connection: sqlite3.Connection) -> None:
    """Check that numbers are numbers and texts are texts: SQLite reads whatever the bytes of a row have
    become."""
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for (table,) in tables:
        wrong = [
            f"typeof({name}) NOT IN ('{kind.lower()}', '{kind.lower() if required or key else 'null'}')"
            for _, name, kind, required, _, key in connection.execute(f"PRAGMA table_info({table})")
            if (table, name) not in _OF_TWO_KINDS
        ]
        if connection.execute(f"SELECT 1 FROM {table} WHERE {' OR '.join(wrong)} LIMIT 1").fetchone():
            raise _Damaged(f"the table {table} has values of the wrong kind")


def is_damage(error: Exception) -> bool:
    """Whether the file is broken, by SQLite's own word or checks. A full disk, a lock or missing rights are
    no damage.

    Rows are read as whatever text they are (`_text`). So what cannot be decoded is the schema, which SQLite
    itself does not check.
    """
    if isinstance(error, _Damaged | UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _is_foreign(error)


def _is_foreign(error: Exception) -> bool:
    """Whether the file is a sound database without flexod's tables, as if somebody put another one there."""
    text = str(error)
    return isinstance(error, sqlite3.OperationalError) and (
        "no such table" in text or "no such column" in text
    )
