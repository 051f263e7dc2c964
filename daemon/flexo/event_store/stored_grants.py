"""The grants that stand, as the event store's file keeps them: flexod goes by them after a restart.

An event store of an older release has events only. The events say where a job was granted how many workers.
That names a grant as well as an id does, because a job has one satellite a node.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Final

from flexo.event_store import grant_events
from flexo.event_store.grant_events import GrantChange
from flexo.issued_grants import UNKNOWN_OWNER, IssuedGrant
from flexo.model.queue import JobKey, Principal
from flexo_protos.resources import Resources, amount, as_texts, of_texts

_NOT_KNOWN: Final = -1
"""An amount, or an owner, that an older release did not record."""

SCHEMA: Final = (
    "CREATE TABLE issued_grant (job_id INTEGER NOT NULL, restart_count INTEGER NOT NULL,"
    " grant_id TEXT NOT NULL, user_id INTEGER NOT NULL, node TEXT NOT NULL, workers INTEGER NOT NULL,"
    " slurm_partition TEXT NOT NULL, gpus INTEGER NOT NULL, cpus INTEGER NOT NULL,"
    " memory_mib INTEGER NOT NULL, issued_at REAL NOT NULL, satellite_job_id INTEGER NOT NULL, ended_at REAL,"
    " PRIMARY KEY (job_id, restart_count, grant_id, node))",
)
_COLUMNS: Final = (
    "job_id, restart_count, grant_id, user_id, node, workers, slurm_partition, gpus, cpus, memory_mib,"
    " issued_at, satellite_job_id, ended_at"
)


def read(connection: sqlite3.Connection) -> tuple[IssuedGrant, ...]:
    """All remembered grants."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM issued_grant ORDER BY issued_at, grant_id, node")
    return tuple(
        IssuedGrant(
            *(JobKey(job, restart), grant_id, _owner(user), node, workers, partition),
            *(_resources(gpus, cpus, memory_mib), *times),
        )
        for job, restart, grant_id, user, node, workers, partition, gpus, cpus, memory_mib, *times in rows
    )


def write(
    connection: sqlite3.Connection, kept: Iterable[IssuedGrant], forgotten: Iterable[IssuedGrant]
) -> None:
    """Remember `kept` as they are now, and forget `forgotten`."""
    connection.executemany(
        "DELETE FROM issued_grant WHERE job_id = ? AND restart_count = ? AND grant_id = ? AND node = ?",
        [(*grant.job, grant.grant_id, grant.node) for grant in forgotten],
    )
    connection.executemany(
        f"INSERT OR REPLACE INTO issued_grant ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [_row(grant) for grant in kept],
    )


def take_from_events(connection: sqlite3.Connection) -> None:
    """Fill the new table with the grants that an older release's events begin and do not end."""
    standing: dict[tuple[JobKey, str], IssuedGrant] = {}
    rows = connection.execute(
        "SELECT at, kind, job_id, restart_count, text FROM event"
        f" WHERE job_id IS NOT NULL AND kind IN ({', '.join(repr(kind) for kind in grant_events.KINDS)})"
        " ORDER BY id"
    )
    for at, kind, job_id, restart_count, text in rows:
        key = JobKey(job_id, restart_count or 0)
        change = grant_events.change_of(kind, text)
        if change is not None and change.begins:
            standing[key, change.node] = _unnamed(key, change, at)
        elif change is not None:
            standing.pop((key, change.node), None)
    write(connection, standing.values(), ())


def _unnamed(key: JobKey, begun: GrantChange, at: float) -> IssuedGrant:
    size = begun.workers, "", None
    return IssuedGrant(key, "", UNKNOWN_OWNER, begun.node, *size, at, begun.satellite_job_id)


def _owner(user_id: int | str) -> Principal:
    """The owner in the column: a uid is a number there; -1: an older release did not record the owner."""
    return UNKNOWN_OWNER if user_id == _NOT_KNOWN else Principal(str(user_id))


def _resources(gpus: int | str, cpus: int, memory_mib: int) -> Resources | None:
    """The resources in the columns. The first column is a text if there are resources that older releases do
    not know."""
    if gpus == _NOT_KNOWN:
        return None
    if isinstance(gpus, int):
        return Resources(gpus, cpus, memory_mib)
    share, *devices = json.loads(gpus)
    return Resources(amount(share), cpus, memory_mib, devices=of_texts(devices))


def _columns(resources: Resources | None) -> tuple[object, ...]:
    """The columns of `resources`: the inverse of `_resources`."""
    if resources is None:
        return (_NOT_KNOWN,) * 3
    gpus: object = resources.gpus
    if not resources.plain:
        gpus = json.dumps([str(resources.gpus), *as_texts(resources.devices)])
    return gpus, resources.cpus, resources.memory_mib


def _row(grant: IssuedGrant) -> tuple[object, ...]:
    return (
        *(grant.job.job_id, grant.job.restart_count, grant.grant_id, grant.owner or _NOT_KNOWN, grant.node),
        *(grant.workers, grant.partition, *_columns(grant.resources)),
        *(grant.issued_at, grant.satellite_job_id, grant.ended_at),
    )
