"""Format `philly`: Microsoft's Philly cluster, as petuum/adaptdl parsed msr-fiddle/philly-traces."""

from __future__ import annotations

from pathlib import Path

from flexo_simulation.formats.errors import NotSimulated
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import NO_GPUS, ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv
from flexo_simulation.workload import TraceJob, Workload

COLUMNS = ("timestamp", "duration", "num_gpus")


def read(path: Path, options: ReadOptions) -> Workload:
    """Read all jobs; the virtual cluster, if there is such a column, is a job's tenant. Raises BadTrace."""
    sieve = Sieve(path, options)
    with opened(path) as file:
        return sieve.workload(sieve.sift(rows_of_csv(file, sieve.name, COLUMNS), _job))


def _job(row: Row) -> TraceJob:
    gpus, duration_s = row.whole("num_gpus"), row.seconds("duration")
    submitted_at = row.moment("timestamp")
    if not gpus:
        raise NotSimulated(NO_GPUS)
    return linear_job(
        submitted_at=submitted_at,
        gpus=gpus,
        duration_s=duration_s,
        line=row.line,
        tenant=row.text("cluster"),
    )
