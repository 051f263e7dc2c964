"""The owners of elastic jobs, as the event store's file keeps them: who may read of a job that has ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flexo.model.queue import Principal

SCHEMA: Final = (
    "CREATE TABLE job_owner (job_id INTEGER PRIMARY KEY, principal TEXT NOT NULL, user TEXT NOT NULL,"
    " seen_at REAL NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The owner of one job."""

    job_id: int
    owner: Principal
    user: str
    """The owner's name, for people."""


def write(connection: sqlite3.Connection, owners: Iterable[JobOwner], at: float) -> None:
    """Remember `owners`, who were seen at `at`. A job takes the place of an earlier one of its number."""
    connection.executemany(
        "INSERT OR REPLACE INTO job_owner VALUES (?, ?, ?, ?)",
        [(each.job_id, each.owner, each.user, at) for each in owners],
    )


def read(connection: sqlite3.Connection, job_id: int) -> JobOwner | None:
    """The owner of the job `job_id`; None if it is not known."""
    query = "SELECT principal, user FROM job_owner WHERE job_id = ?"
    row = connection.execute(query, (job_id,)).fetchone()
    return None if row is None else JobOwner(job_id, Principal(row[0]), row[1])


def prune(connection: sqlite3.Connection, oldest: float) -> None:
    """Forget the owners of jobs that were seen before `oldest` and have no events any more."""
    connection.execute(
        "DELETE FROM job_owner WHERE seen_at < ? AND job_id NOT IN"
        " (SELECT job_id FROM event WHERE job_id IS NOT NULL)",
        (oldest,),
    )
