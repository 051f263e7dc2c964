"""The trials of scripts with several batches, as the event store's file keeps them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from flexo.model.measured import BatchTime, ScriptKey, TriedBatches, TriedScript

SCHEMA: Final = (
    "CREATE TABLE batch_time (user TEXT NOT NULL, script TEXT NOT NULL, gpu_type TEXT NOT NULL,"
    " weights INTEGER NOT NULL, largest INTEGER NOT NULL, worker_s REAL NOT NULL, measured_at REAL NOT NULL,"
    " samples INTEGER NOT NULL, step_s REAL NOT NULL, steps INTEGER NOT NULL,"
    " PRIMARY KEY (user, script, gpu_type, samples))",
)
_OF_SCRIPT: Final = "user = ? AND script = ? AND gpu_type = ?"


def read(connection: sqlite3.Connection) -> tuple[TriedScript, ...]:
    """All remembered trials, with the times of each by samples."""
    found: dict[ScriptKey, TriedScript] = {}
    rows = connection.execute(
        "SELECT user, script, gpu_type, weights, largest, worker_s, measured_at, samples, step_s, steps"
        " FROM batch_time ORDER BY samples"
    )
    for user, digest, gpu_type, weights, largest, worker_s, at, samples, step_s, steps in rows:
        script = ScriptKey(user, digest, gpu_type)
        times = (*(found[script].tried.times if script in found else ()), BatchTime(samples, step_s, steps))
        found[script] = TriedScript(script, TriedBatches(weights, largest, times, worker_s), at)
    return tuple(found.values())


def write(connection: sqlite3.Connection, tried: TriedScript, forgotten: Iterable[ScriptKey]) -> None:
    """Remember the trials of a script instead of earlier ones. Forget the scripts in `forgotten`."""
    script, result = tried.script, tried.tried
    connection.executemany(
        f"DELETE FROM batch_time WHERE {_OF_SCRIPT}",
        [(each.user, each.digest, each.gpu_type) for each in (script, *forgotten)],
    )
    connection.executemany(
        "INSERT INTO batch_time VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(script.user, script.digest, script.gpu_type, result.weights, result.largest),
                *(result.worker_s, tried.at, each.samples, each.step_s, each.steps),
            )
            for each in result.times
        ],
    )
