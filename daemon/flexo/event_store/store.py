"""flexod's observations, decisions and actions, with reasons, in one SQLite file that survives any crash.

The event store serves people. Nothing in it is needed to go on: a file that is corrupt, deleted or on a full
disk costs history, not training. flexod reads back the grants that stand (stored_grants.py; leaders have
flexod's signature of theirs) and the owners' caps (`flexo scale`). It also reads what profiles have measured,
which GPUs are slow, and since when and why servers are on loan. An entry is written in one transaction: as a
whole or not at all.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from flexo.event_store import job_owners, stored_grants, stored_trials
from flexo.event_store.file import Newer, is_damage, last_writer, open_file
from flexo.event_store.job_owners import JobOwner
from flexo.event_store.search import LARGEST_NUMBER, Search, look
from flexo.event_store.space import make_room
from flexo.events import ROUTINE, Event
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import Cap
from flexo.model.loans import Demand, LeftAlone, Loan, LoanState, PastLoan
from flexo.model.measured import RunningTime, ScalingPoint, ScriptKey, SlowGpu, TriedScript
from flexo.model.queue import JobKey

_DAY_S: Final = 86400.0
_PRUNE_EVERY_S: Final = 3600.0
MAX_MIB: Final = 512
"""The default limit of the file's size."""
_MOST_UNENDED: Final = 1000
"""The most jobs whose ends flexod asks for after a start."""
_T = TypeVar("_T")
_log = structlog.get_logger("flexo.event_store")


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: events with the numbers of their entries, newest first."""

    events: tuple[tuple[int, Event], ...] = ()
    before: int = 0
    """Entries before this number were not looked at; 0: there are none left."""
    newest: int = 0
    """The number of the newest entry; 0: the event store is empty."""


class EventStore:
    """The open event store, for any thread. No method raises for what the disk does: see `trouble`."""

    keeps: Final = True
    """Somebody may read the events, so the controller makes texts for them."""

    def __init__(
        self,
        path: Path,
        keep_days: float,
        epoch: int = 0,
        max_mib: int = MAX_MIB,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`epoch`: the epoch of the flexod that writes from now on, if others may have the same file; 0: none
        may."""
        self._path = path
        self._epoch = epoch
        self._keep_s = keep_days * _DAY_S
        self._most_bytes = max_mib << 20
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._trouble = ""
        self._unwritten = 0
        self.events_lost = 0
        """Events that could not be written, since this flexod began."""
        self.failures = 0
        """The number of times that the disk refused, since this flexod began."""
        self._monotonic = monotonic
        self._pruned_at = monotonic()
        """By no clock that can be set, and not at the start: a host whose clock is wrong until it hears of
        the time would drop its history."""
        with self._lock:
            self._guarded(lambda connection: None)

    @property
    def trouble(self) -> str:
        """The reason why entries cannot be written at present; "" when they can."""
        return self._trouble

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> Sequence[int]:
        """Write the events of one cycle, and the facts of the snapshot behind them. Returns the numbers of
        their entries; none if the disk refuses."""
        if not events:
            return ()

        def write(connection: sqlite3.Connection) -> Sequence[int]:
            if self._unwritten:
                text = f"{self._unwritten} events before this one could not be written: {self._trouble}"
                _insert(connection, (Event(at, "journal", None, text),), None)
            snapshot_id = None
            if facts:
                cursor = connection.execute("INSERT INTO snapshot (at, facts) VALUES (?, ?)", (at, facts))
                snapshot_id = cursor.lastrowid
            numbers = _insert(connection, events, snapshot_id)
            self._prune(connection, at)
            make_room(connection, self._most_bytes, len(events))
            return numbers

        with self._lock:
            written = self._guarded(write)
            if written is None:
                self._unwritten += len(events)
                self.events_lost += len(events)
                return ()
            self._unwritten = 0
            return written[0]

    def set_cap(self, key: JobKey, cap: Cap | None) -> None:
        """Remember the owner's cap of a job (None: forget it), so that it outlives a restart."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM cap WHERE job_id = ? AND restart_count = ?", (key.job_id, key.restart_count)
            )
            if cap is not None:
                nodes = ",".join(sorted(cap.nodes))
                connection.execute(
                    "INSERT INTO cap (job_id, restart_count, workers, nodes, who) VALUES (?, ?, ?, ?, ?)",
                    (key.job_id, key.restart_count, cap.workers, nodes, cap.by),
                )

        with self._lock:
            self._guarded(write)

    def caps(self) -> dict[JobKey, Cap]:
        """All caps that were set and not taken away."""

        def read(connection: sqlite3.Connection) -> dict[JobKey, Cap]:
            rows = connection.execute("SELECT job_id, restart_count, workers, nodes, who FROM cap")
            return {
                JobKey(job_id, restart): Cap(workers, frozenset(filter(None, nodes.split(","))), who)
                for job_id, restart, workers, nodes, who in rows
            }

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else {}

    def set_grants(self, kept: Iterable[IssuedGrant], forgotten: Iterable[IssuedGrant]) -> bool:
        """Remember `kept` as they are now, and forget `forgotten`. Returns whether the disk took it."""
        changed, gone = tuple(kept), tuple(forgotten)
        with self._lock:
            return self._guarded(lambda each: stored_grants.write(each, changed, gone)) is not None

    def grants(self) -> tuple[IssuedGrant, ...]:
        """All remembered grants."""
        with self._lock:
            found = self._guarded(stored_grants.read)
        return found[0] if found else ()

    def set_owners(self, owners: Iterable[JobOwner], at: float) -> bool:
        """Remember the owners of jobs that were seen at `at`. Returns whether the disk took it."""
        seen = tuple(owners)
        with self._lock:
            return self._guarded(lambda each: job_owners.write(each, seen, at)) is not None

    def owner_of(self, job_id: int) -> JobOwner | None:
        """The owner of the elastic job `job_id`, also if it has ended; None if nobody knows."""
        with self._lock:
            found = self._guarded(lambda each: job_owners.read(each, min(job_id, LARGEST_NUMBER)))
        return found[0] if found else None

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Remember the measurements of a job's profile, instead of those of an earlier profile."""
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
        """The newest profile of each job that has one, sorted by the number of workers."""

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

    def tried_scripts(self) -> tuple[TriedScript, ...]:
        """All remembered trials of scripts with several batches."""
        with self._lock:
            found = self._guarded(stored_trials.read)
        return found[0] if found else ()

    def set_tried_script(self, tried: TriedScript, forgotten: Iterable[ScriptKey]) -> None:
        """Remember the trials of a script, and forget those of the scripts `forgotten`."""
        gone = tuple(forgotten)
        with self._lock:
            self._guarded(lambda each: stored_trials.write(each, tried, gone))

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Remember that a GPU is slow for a user, instead of earlier reports of that user's jobs about it."""
        names = ",".join(map(str, gpu.gpus))
        values = (
            gpu.node,
            names,
            gpu.user,
            gpu.ratio,
            gpu.job.job_id,
            gpu.job.restart_count,
            gpu.seen_at,
            gpu.until_at,
        )
        with self._lock:
            self._guarded(
                lambda connection: connection.execute(
                    "INSERT OR REPLACE INTO slow_gpu VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values
                )
            )

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """The slow GPUs that are remembered at `now`."""

        def read(connection: sqlite3.Connection) -> tuple[SlowGpu, ...]:
            rows = connection.execute(
                "SELECT node, gpus, ratio, job_id, restart_count, seen_at, until_at, user FROM slow_gpu"
                " WHERE until_at > ? ORDER BY node, gpus, user",
                (now,),
            )
            return tuple(
                SlowGpu(node, numbers, ratio, JobKey(job, restart), *rest)
                for node, gpus, ratio, job, restart, *rest in rows
                if (numbers := _numbers(gpus)) is not None
            )

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Remember the running times of jobs that have ended. A part of a GPU counts as one here."""
        rows = [(each.user, math.ceil(each.gpus), each.seconds, each.ended_at) for each in times]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO running_time VALUES (?, ?, ?, ?)", rows)

        if rows:
            with self._lock:
                self._guarded(write)

    def running_times(self) -> tuple[RunningTime, ...]:
        """All remembered running times, in the order in which the jobs ended."""

        def read(connection: sqlite3.Connection) -> tuple[RunningTime, ...]:
            query = "SELECT user, gpus, seconds, ended_at FROM running_time ORDER BY ended_at"
            rows = connection.execute(query)
            return tuple(RunningTime(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def set_priorities(self, given: Iterable[tuple[JobKey, int]], forgotten: Iterable[JobKey]) -> None:
        """Remember the priorities in `given`, and forget those of the jobs in `forgotten`."""
        rows = [(key.job_id, key.restart_count, priority) for key, priority in given]
        gone = [(key.job_id, key.restart_count) for key in forgotten]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM priority WHERE job_id = ? AND restart_count = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO priority VALUES (?, ?, ?)", rows)

        with self._lock:
            self._guarded(write)

    def priorities(self) -> dict[JobKey, int]:
        """The priorities that flexod gave to pending jobs and has not forgotten."""

        def read(connection: sqlite3.Connection) -> dict[JobKey, int]:
            rows = connection.execute("SELECT job_id, restart_count, priority FROM priority")
            return {JobKey(job_id, restart): priority for job_id, restart, priority in rows}

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else {}

    def add_demand(self, demand: Demand) -> None:
        """Remember one demand of the inference cluster: one row for each time that lending decides."""
        values = demand.at, demand.servers, demand.source
        with self._lock:
            self._guarded(
                lambda connection: connection.execute(
                    "INSERT OR REPLACE INTO demand VALUES (?, ?, ?)", values
                )
            )

    def demand(self, since: float, step_s: float) -> tuple[Demand, ...]:
        """The demand from `since` on, oldest first: the highest in each `step_s`, with its time."""

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

    def set_loans(
        self, loans: Iterable[Loan], over: Iterable[PastLoan] = (), left_alone: Iterable[LeftAlone] = ()
    ) -> None:
        """Replace the remembered loans and left-alone servers by `loans` and `left_alone`, and add the ended
        loans `over`."""
        rows = [
            (
                *(loan.node, loan.since_at, loan.why, loan.state.value),
                *(loan.called_back_at, loan.deadline_at, loan.why_back),
                *(loan.workers_scaled_in, loan.bases_preempted, loan.servers_emptied_beside),
            )
            for loan in loans
        ]
        past = [
            (
                *(loan.node, loan.since_at, loan.why, loan.called_back_at, loan.deadline_at, loan.why_back),
                *(loan.empty_at, loan.ended_at, loan.workers_scaled_in, loan.bases_preempted),
                loan.servers_emptied_beside,
            )
            for loan in over
        ]
        alone = [(each.node, each.until_at) for each in left_alone]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM loan")
            connection.executemany(
                "INSERT INTO loan (node, since_at, why, state, called_back_at, deadline_at, why_back,"
                " workers_scaled_in, bases_preempted, servers_emptied_beside)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            connection.execute("DELETE FROM left_alone")
            connection.executemany("INSERT INTO left_alone VALUES (?, ?)", alone)
            connection.executemany(
                "INSERT INTO past_loan (node, since_at, why, called_back_at, deadline_at, why_back, empty_at,"
                " ended_at, workers_scaled_in, bases_preempted, servers_emptied_beside)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                past,
            )

        with self._lock:
            self._guarded(write)

    def loans(self) -> tuple[Loan, ...]:
        """The loans that stood, as of the last write.

        A loan in a state that this flexod does not know counts as reclaimed, and says so.
        """

        def read(connection: sqlite3.Connection) -> tuple[Loan, ...]:
            rows = connection.execute(
                "SELECT node, since_at, why, state, called_back_at, deadline_at, why_back,"
                " workers_scaled_in, bases_preempted, servers_emptied_beside FROM loan ORDER BY node"
            )
            return tuple(_loan(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def left_alone(self) -> tuple[LeftAlone, ...]:
        """The servers that somebody had taken back by hand, as of the last write."""

        def read(connection: sqlite3.Connection) -> tuple[LeftAlone, ...]:
            rows = connection.execute("SELECT node, until_at FROM left_alone ORDER BY node")
            return tuple(LeftAlone(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def past_loans(self, limit: int) -> tuple[PastLoan, ...]:
        """The last `limit` loans that ended, newest first."""

        def read(connection: sqlite3.Connection) -> tuple[PastLoan, ...]:
            rows = connection.execute(
                "SELECT node, since_at, why, called_back_at, deadline_at, why_back, empty_at, ended_at,"
                " workers_scaled_in, bases_preempted, servers_emptied_beside"
                " FROM past_loan ORDER BY id DESC LIMIT ?",
                (limit,),
            )
            return tuple(PastLoan(*row) for row in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def events(self, job_id: int | None, limit: int, *, routine: bool = False) -> tuple[Event, ...]:
        """The newest `limit` events of the job (None: of all jobs), newest first.

        `routine`: include every extension of a time limit.
        """
        conditions, values = ["TRUE"], []
        if job_id is not None:
            conditions.append("job_id = ?")
            values.append(min(job_id, LARGEST_NUMBER))
        if not routine:
            conditions.append(f"kind != '{ROUTINE}'")
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

    def unended(self, since: float) -> tuple[JobKey, ...]:
        """Jobs that flexod let grow, with events from `since` on and without an end."""

        def read(connection: sqlite3.Connection) -> tuple[JobKey, ...]:
            rows = connection.execute(
                "SELECT job_id, restart_count FROM event WHERE at >= ? AND job_id IS NOT NULL"
                " GROUP BY job_id, restart_count HAVING max(kind = 'end') = 0"
                " AND (max(kind IN ('grow', 'adopt')) = 1 OR EXISTS (SELECT 1 FROM issued_grant AS issued"
                " WHERE issued.job_id = event.job_id AND issued.restart_count = event.restart_count))"
                " ORDER BY max(id) DESC LIMIT ?",
                (since, _MOST_UNENDED),
            )
            return tuple(JobKey(job_id, restart) for job_id, restart in rows)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else ()

    def find(self, search: Search) -> Found:
        """The events that match `search`. A long event store takes several searches: see `Found.before`."""

        def read(connection: sqlite3.Connection) -> Found:
            rows, before, newest = look(connection, search, ROUTINE)
            events = tuple(
                (number, Event(at, kind, None if job is None else JobKey(job, restart), text))
                for number, at, kind, job, restart, text in rows
            )
            return Found(events, before, newest)

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else Found()

    def facts_of(self, numbers: Sequence[int]) -> dict[int, str]:
        """The facts behind the events in the entries `numbers`, as JSON; none were kept of those missing."""

        def read(connection: sqlite3.Connection) -> dict[int, str]:
            rows = connection.execute(
                "SELECT event.id, facts FROM event JOIN snapshot ON snapshot.id = snapshot_id"
                f" WHERE event.id IN ({', '.join('?' * len(numbers))})",
                tuple(numbers),
            )
            return {number: str(facts) for number, facts in rows}

        with self._lock:
            found = self._guarded(read)
        return found[0] if found else {}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    # The following methods are for callers that hold the lock.

    def _guarded(self, work: Callable[[sqlite3.Connection], _T]) -> tuple[_T] | None:
        """The result of `work` in one transaction; None, with `trouble` set, if the disk refuses."""
        for attempt in (1, 2):
            try:
                connection = self._connected()
                with connection:
                    self._check_epoch(connection)
                    result = work(connection)
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                self._disconnect()
                if is_damage(error) and attempt == 1 and self._move_aside(error):
                    continue
                self.failures += 1
                self._report(f"the event store {self._path} cannot be used: {error}")
                return None
            except Exception as error:  # a value that SQLite does not take: nothing is wrong with the file
                self.failures += 1
                _log.exception("an entry of the event store was not written or not read")
                self._report(f"the event store {self._path} misses an entry: {type(error).__name__}: {error}")
                return None
            self._trouble = ""
            return (result,)
        return None

    def _check_epoch(self, connection: sqlite3.Connection) -> None:
        """Check the epoch in the transaction of the write, so that nothing is written after a later flexod
        began to write."""
        if not self._epoch:
            return
        connection.execute("BEGIN IMMEDIATE")
        if last_writer(connection, self._epoch) != self._epoch:
            try:
                connection.execute("DELETE FROM writer")
                connection.execute("INSERT INTO writer VALUES (?)", (self._epoch,))
            except sqlite3.OperationalError:  # a full disk: what is there can be read all the same
                connection.rollback()

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.error("event store trouble", trouble=trouble)
        self._trouble = trouble

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_still_there():
            _log.error("the event store's file is gone; a new one is begun", path=str(self._path))
            self._disconnect()
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = open_file(self._path, self._epoch)
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

    def _move_aside(self, why: Exception) -> bool:
        """Keep a damaged file, or a newer flexod's, for the administrator; False if even that fails."""
        kind = f"version-{why.version}" if isinstance(why, Newer) else "damaged"
        aside = self._path.with_name(f"{self._path.name}.{kind}-{time.strftime('%Y%m%dT%H%M%S')}")
        try:
            for suffix in ("", "-wal", "-shm"):
                file = self._path.with_name(self._path.name + suffix)
                if file.exists():
                    file.rename(aside.with_name(aside.name + suffix))
        except OSError:
            return False
        _log.error(
            f"the event store is put aside ({kind}); a new one is begun", why=str(why), kept_as=str(aside)
        )
        return True

    def _prune(self, connection: sqlite3.Connection, now: float) -> None:
        if self._monotonic() - self._pruned_at < _PRUNE_EVERY_S:
            return
        self._pruned_at = self._monotonic()
        oldest = now - self._keep_s
        connection.execute("DELETE FROM event WHERE at < ?", (oldest,))
        job_owners.prune(connection, oldest)
        connection.execute("DELETE FROM snapshot WHERE at < ?", (oldest,))
        connection.execute("DELETE FROM scaling WHERE measured_at < ?", (oldest,))
        connection.execute("DELETE FROM slow_gpu WHERE until_at < ?", (oldest,))
        connection.execute("DELETE FROM running_time WHERE ended_at < ?", (oldest,))
        connection.execute("DELETE FROM demand WHERE at < ?", (oldest,))
        connection.execute("DELETE FROM past_loan WHERE ended_at < ?", (oldest,))


def _loan(node: str, since_at: float, why: str, state: str, called_back_at: float | None, *more: Any) -> Loan:
    """The loan in one row of the table."""
    try:
        return Loan(node, since_at, why, LoanState(state), called_back_at, *more)
    except ValueError:
        deadline_at, _, *costs = more
        unknown = f"the event store has it in a state that is not known, '{state}'"
        return Loan(node, since_at, why, LoanState.RECLAIMING, called_back_at, deadline_at, unknown, *costs)


def _insert(
    connection: sqlite3.Connection, events: tuple[Event, ...], snapshot_id: int | None
) -> Sequence[int]:
    """Write the events. Returns their numbers, which follow each other: nobody else writes meanwhile."""
    connection.executemany(
        "INSERT INTO event (at, kind, job_id, restart_count, text, snapshot_id) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                event.at,
                event.kind,
                event.job.job_id if event.job else None,
                event.job.restart_count if event.job else None,
                _storable(event.text),
                snapshot_id,
            )
            for event in events
        ],
    )
    last: int = connection.execute("SELECT last_insert_rowid()").fetchone()[0]
    return range(last - len(events) + 1, last + 1)


def _numbers(text: str) -> tuple[int, ...] | None:
    """The numbers in `text`; None if it is no list of numbers any more: that row is skipped."""
    parts = [part for part in text.split(",") if part]
    return tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else None


def _storable(text: str) -> str:
    """`text` as SQLite takes it: UTF-8 only, so half a character is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
