"""What flexod saw, decided and did, and why, in one SQLite file that survives any crash.

The journal serves people and never steers: nothing in it is needed to go on, so a file that is corrupt,
deleted or on a full disk costs history, not training. Read back are the owners' caps (`flexo scale`), what
profiles have measured, which GPUs are slow, and of servers on loan since when and why. An entry is written
in one transaction: it is there as a whole or not at all.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

import structlog

from flexo.model import Demand, JobKey, Loan, LoanState, PastLoan, RunningTime, ScalingPoint, SlowGpu

_DAY_S: Final = 86400.0
_PRUNE_EVERY_S: Final = 3600.0
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
_SCHEMAS: Final = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4, _SCHEMA_5, _SCHEMA_6)
"""What each version adds to the one before it."""
_VERSION: Final = len(_SCHEMAS)

_T = TypeVar("_T")
_log = structlog.get_logger("flexo.journal")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the journal. `at` is seconds since the epoch."""

    at: float
    kind: str
    """daemon, grow, shrink, left, lost, adopt, failure, extend, cancel, wait, scale, profile, checkpoint,
    slow, order, trouble, journal; allocate and drop where the cluster allocates; of servers on loan what
    `loaning.book.LoanEvent` lists."""
    job: JobKey | None
    text: str


class Journal:
    """The open journal; usable from any thread. No method raises for what the disk does: see `trouble`."""

    keeps: Final = True
    """Somebody may read it: events are worth their words."""

    def __init__(self, path: Path, keep_days: float) -> None:
        self._path = path
        self._keep_s = keep_days * _DAY_S
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._trouble = ""
        self._unwritten = 0
        self._pruned_at = 0.0
        with self._lock:
            self._guarded(lambda connection: None)

    @property
    def trouble(self) -> str:
        """Why entries are not written at present; "" when they are."""
        return self._trouble

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> None:
        """Write what happened in one cycle, and the facts of the snapshot that it went by."""
        if not events:
            return

        def write(connection: sqlite3.Connection) -> None:
            if self._unwritten:
                text = f"{self._unwritten} events before this one could not be written: {self._trouble}"
                _insert(connection, (Event(at, "journal", None, text),), None)
            snapshot_id = None
            if facts:
                cursor = connection.execute("INSERT INTO snapshot (at, facts) VALUES (?, ?)", (at, facts))
                snapshot_id = cursor.lastrowid
            _insert(connection, events, snapshot_id)
            self._prune(connection, at)

        with self._lock:
            if self._guarded(write) is None:
                self._unwritten += len(events)
            else:
                self._unwritten = 0

    def set_cap(self, key: JobKey, workers: int | None) -> None:
        """Remember the owner's cap of a job (None: forget it), so that it outlives a restart."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM cap WHERE job_id = ? AND restart_count = ?", (key.job_id, key.restart_count)
            )
            if workers is not None:
                values = (key.job_id, key.restart_count, workers)
                connection.execute(
                    "INSERT INTO cap (job_id, restart_count, workers) VALUES (?, ?, ?)", values
                )

        with self._lock:
            self._guarded(write)

    def caps(self) -> dict[JobKey, int]:
        """All caps that were set and not taken away."""

        def read(connection: sqlite3.Connection) -> dict[JobKey, int]:
            rows = connection.execute("SELECT job_id, restart_count, workers FROM cap")
            return {JobKey(job_id, restart): workers for job_id, restart, workers in rows}

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else {}

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Remember what a profile of a job has measured, instead of what an earlier one has."""
        rows = [
            (
                *(key.job_id, key.restart_count, point.workers, point.samples_per_s),
                *(point.step_s, point.sync_s, point.efficiency, point.batches, point.measured_at),
            )
            for point in points
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM scaling WHERE job_id = ? AND restart_count = ?", (key.job_id, key.restart_count)
            )
            connection.executemany("INSERT INTO scaling VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

        with self._lock:
            self._guarded(write)

    def scaling(self) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """The newest profile of each job that has one, by workers."""

        def read(connection: sqlite3.Connection) -> dict[JobKey, tuple[ScalingPoint, ...]]:
            found: dict[JobKey, tuple[ScalingPoint, ...]] = {}
            rows = connection.execute(
                "SELECT job_id, restart_count, workers, samples_per_s, step_s, sync_s, efficiency, batches,"
                " measured_at FROM scaling ORDER BY workers"
            )
            for job_id, restart, *values in rows:
                key = JobKey(job_id, restart)
                found[key] = (*found.get(key, ()), ScalingPoint(*values))
            return found

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else {}

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Remember that a GPU is slow, instead of what was known of it."""
        names = ",".join(map(str, gpu.gpus))
        values = (
            gpu.node,
            names,
            gpu.ratio,
            gpu.job.job_id,
            gpu.job.restart_count,
            gpu.seen_at,
            gpu.until_at,
        )
        with self._lock:
            self._guarded(
                lambda connection: connection.execute(
                    "INSERT OR REPLACE INTO slow_gpu VALUES (?, ?, ?, ?, ?, ?, ?)", values
                )
            )

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """The GPUs that are remembered at `now`."""

        def read(connection: sqlite3.Connection) -> tuple[SlowGpu, ...]:
            rows = connection.execute(
                "SELECT node, gpus, ratio, job_id, restart_count, seen_at, until_at FROM slow_gpu"
                " WHERE until_at > ? ORDER BY node, gpus",
                (now,),
            )
            return tuple(
                SlowGpu(node, _numbers(gpus), ratio, JobKey(job, restart), seen_at, until_at)
                for node, gpus, ratio, job, restart, seen_at, until_at in rows
            )

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Remember how long jobs ran that have ended."""
        rows = [(time.user, time.gpus, time.seconds, time.ended_at) for time in times]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO running_time VALUES (?, ?, ?, ?)", rows)

        if rows:
            with self._lock:
                self._guarded(write)

    def running_times(self) -> tuple[RunningTime, ...]:
        """All that are remembered, in the order in which the jobs ended."""

        def read(connection: sqlite3.Connection) -> tuple[RunningTime, ...]:
            query = "SELECT user, gpus, seconds, ended_at FROM running_time ORDER BY ended_at"
            rows = connection.execute(query)
            return tuple(RunningTime(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def set_priorities(self, given: Iterable[tuple[JobKey, int]], forgotten: Iterable[JobKey]) -> None:
        """Remember the priorities that pending jobs were given, and forget those of others."""
        rows = [(key.job_id, key.restart_count, priority) for key, priority in given]
        gone = [(key.job_id, key.restart_count) for key in forgotten]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM priority WHERE job_id = ? AND restart_count = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO priority VALUES (?, ?, ?)", rows)

        with self._lock:
            self._guarded(write)

    def priorities(self) -> dict[JobKey, int]:
        """The priorities that were given to pending jobs, and not forgotten."""

        def read(connection: sqlite3.Connection) -> dict[JobKey, int]:
            rows = connection.execute("SELECT job_id, restart_count, priority FROM priority")
            return {JobKey(job_id, restart): priority for job_id, restart, priority in rows}

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else {}

    def add_demand(self, demand: Demand) -> None:
        """Remember what the inference cluster needed; one row, for each time that lending decides."""
        values = demand.at, demand.servers, demand.source
        with self._lock:
            self._guarded(
                lambda connection: connection.execute(
                    "INSERT OR REPLACE INTO demand VALUES (?, ?, ?)", values
                )
            )

    def demand(self, since: float, step_s: float) -> tuple[Demand, ...]:
        """Since `since`, oldest first: of each `step_s` the highest, as of when that was."""

        def read(connection: sqlite3.Connection) -> tuple[Demand, ...]:
            # SQLite takes the other columns from the row that has the maximum.
            rows = connection.execute(
                "SELECT at, max(servers), source FROM demand WHERE at >= ?"
                " GROUP BY CAST(at / ? AS INTEGER) ORDER BY at",
                (since, step_s),
            )
            return tuple(Demand(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def set_loans(self, loans: Iterable[Loan]) -> None:
        """Remember the loans that stand, instead of those before."""
        rows = [
            (
                *(loan.node, loan.since_at, loan.why, loan.state.value),
                *(loan.called_back_at, loan.deadline_at, loan.why_back),
            )
            for loan in loans
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM loan")
            connection.executemany("INSERT INTO loan VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

        with self._lock:
            self._guarded(write)

    def loans(self) -> tuple[Loan, ...]:
        """The loans that stood when they were last written down."""

        def read(connection: sqlite3.Connection) -> tuple[Loan, ...]:
            rows = connection.execute(
                "SELECT node, since_at, why, state, called_back_at, deadline_at, why_back FROM loan"
                " ORDER BY node"
            )
            return tuple(
                Loan(node, since_at, why, LoanState(state), *back)
                for node, since_at, why, state, *back in rows
            )

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def add_past_loans(self, loans: Iterable[PastLoan]) -> None:
        """Remember loans that are over."""
        rows = [
            (
                *(loan.node, loan.since_at, loan.why, loan.called_back_at, loan.deadline_at, loan.why_back),
                *(loan.empty_at, loan.ended_at, loan.workers_scaled_in, loan.bases_preempted),
            )
            for loan in loans
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT INTO past_loan (node, since_at, why, called_back_at, deadline_at, why_back, empty_at,"
                " ended_at, workers_scaled_in, bases_preempted) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

        if rows:
            with self._lock:
                self._guarded(write)

    def past_loans(self, limit: int) -> tuple[PastLoan, ...]:
        """The last `limit` loans that ended, newest first."""

        def read(connection: sqlite3.Connection) -> tuple[PastLoan, ...]:
            rows = connection.execute(
                "SELECT node, since_at, why, called_back_at, deadline_at, why_back, empty_at, ended_at,"
                " workers_scaled_in, bases_preempted FROM past_loan ORDER BY id DESC LIMIT ?",
                (limit,),
            )
            return tuple(PastLoan(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def events(self, job_id: int | None, limit: int, *, routine: bool = False) -> tuple[Event, ...]:
        """The newest `limit` events of the job (of all, for None), newest first.

        `routine`: with every extension of a lease too.
        """
        conditions, values = ["TRUE"], []
        if job_id is not None:
            conditions.append("job_id = ?")
            values.append(job_id)
        if not routine:
            conditions.append("kind != 'extend'")
        query = (
            "SELECT at, kind, job_id, restart_count, text FROM event"
            f" WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?"
        )

        def read(connection: sqlite3.Connection) -> tuple[Event, ...]:
            return tuple(
                Event(at, kind, None if job is None else JobKey(job, restart), text)
                for at, kind, job, restart, text in connection.execute(query, (*values, limit))
            )

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def facts_of(self, event: Event) -> str:
        """The snapshot that `event` went by, as JSON; "" if none was kept."""

        def read(connection: sqlite3.Connection) -> str:
            row = connection.execute(
                "SELECT facts FROM event JOIN snapshot ON snapshot.id = snapshot_id"
                " WHERE event.at = ? AND kind = ? AND text = ? LIMIT 1",
                (event.at, event.kind, event.text),
            ).fetchone()
            return "" if row is None else str(row[0])

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ""

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._disconnect()

    # All of the following is for callers that hold the lock.

    def _guarded(self, work: Callable[[sqlite3.Connection], _T]) -> tuple[_T] | None:
        """The result of `work` in one transaction; None, with `trouble` set, if the disk refuses."""
        for attempt in (1, 2):
            try:
                connection = self._connected()
                with connection:
                    result = work(connection)
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                if _is_damage(error) and attempt == 1 and self._move_aside(str(error)):
                    continue
                self._report(f"the journal {self._path} cannot be used: {error}")
                return None
            self._trouble = ""
            return (result,)
        return None

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.error("journal trouble", trouble=trouble)
        self._trouble = trouble

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_still_there():
            _log.error("the journal's file is gone; a new one is begun", path=str(self._path))
            self._disconnect()
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = _open(self._path)
            self._inode = self._path.stat().st_ino
        return self._connection

    def _is_still_there(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _move_aside(self, why: str) -> bool:
        """Keep a damaged file for whoever wants to look into it; False if even that fails."""
        aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        try:
            for suffix in ("", "-wal", "-shm"):
                file = self._path.with_name(self._path.name + suffix)
                if file.exists():
                    file.rename(aside.with_name(aside.name + suffix))
        except OSError:
            return False
        _log.error("the journal is damaged; a new one is begun", why=why, kept_as=str(aside))
        return True

    def _prune(self, connection: sqlite3.Connection, now: float) -> None:
        if now - self._pruned_at < _PRUNE_EVERY_S:
            return
        self._pruned_at = now
        oldest = now - self._keep_s
        connection.execute("DELETE FROM event WHERE at < ?", (oldest,))
        connection.execute("DELETE FROM snapshot WHERE at < ?", (oldest,))
        connection.execute("DELETE FROM scaling WHERE measured_at < ?", (oldest,))
        connection.execute("DELETE FROM slow_gpu WHERE until_at < ?", (oldest,))
        connection.execute("DELETE FROM running_time WHERE ended_at < ?", (oldest,))
        connection.execute("DELETE FROM demand WHERE at < ?", (oldest,))
        connection.execute("DELETE FROM past_loan WHERE ended_at < ?", (oldest,))


def _insert(connection: sqlite3.Connection, events: tuple[Event, ...], snapshot_id: int | None) -> None:
    connection.executemany(
        "INSERT INTO event (at, kind, job_id, restart_count, text, snapshot_id) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                event.at,
                event.kind,
                event.job.job_id if event.job else None,
                event.job.restart_count if event.job else None,
                event.text,
                snapshot_id,
            )
            for event in events
        ],
    )


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a journal in order. Raises sqlite3.DatabaseError when the file is none."""
    connection = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _check(connection)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < _VERSION:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for statement in chain.from_iterable(_SCHEMAS[version:]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif version > _VERSION:
            raise _Damaged(f"it is of version {version}, this flexod writes version {_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


class _Damaged(sqlite3.DatabaseError):
    """A file that SQLite opens, and that is no journal of ours all the same."""


def _check(connection: sqlite3.Connection) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _Damaged(str(verdict))


def _is_damage(error: Exception) -> bool:
    """A broken file, and not a full disk, a lock or missing rights."""
    if isinstance(error, _Damaged):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _is_foreign(error)


def _is_foreign(error: Exception) -> bool:
    """A sound database without our tables, as when somebody put another one there."""
    text = str(error)
    return isinstance(error, sqlite3.OperationalError) and (
        "no such table" in text or "no such column" in text
    )
