"""Format `itp`: Microsoft's ITP clusters, as microsoft/elasticflow-traces publishes them.

Its `duration` is `num_iteration` over the measured throughput of `model_name` with `batch_size` on `num_gpu`
GPUs. With those tables (`--profiles`), a job is as fast on other numbers of GPUs as was measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flexo.scalability.table import BadTable
from flexo_simulation.formats.errors import BadValue, NotSimulated
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import NO_GPUS, ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv
from flexo_simulation.speeds import loaded
from flexo_simulation.table_training import Tables, table_training
from flexo_simulation.workload import TraceJob, Workload

COLUMNS = ("job_id", "submission_time", "num_gpu", "duration")


def read(path: Path, options: ReadOptions) -> Workload:
    """Read all jobs; deadlines do not count. Raises BadTrace."""
    sieve, tables = Sieve(path, options), loaded(options.profiles)
    columns = COLUMNS if tables is None else (*COLUMNS, "model_name", "batch_size")
    with opened(path) as file:
        rows = rows_of_csv(file, sieve.name, columns)
        return sieve.workload(sieve.sift(rows, lambda row: _job(row, tables)))


def _job(row: Row, tables: Tables | None) -> TraceJob:
    gpus, duration_s = row.whole("num_gpu"), row.seconds("duration")
    submitted_at = row.moment("submission_time")
    if not gpus:
        raise NotSimulated(NO_GPUS)
    job = linear_job(
        submitted_at=submitted_at,
        gpus=gpus,
        duration_s=duration_s,
        line=row.line,
        name=row.text("job_id"),
        application=row.text("model_name"),
    )
    if tables is None:
        return job
    try:
        speed = tables.of(job.application, row.whole("batch_size", least=1))
    except BadTable as error:
        raise BadValue(str(error)) from error
    return replace(job, training=table_training(duration_s, gpus, speed))
