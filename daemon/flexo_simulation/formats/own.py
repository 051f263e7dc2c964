"""Format `own`: flexo's own, a CSV file that is easy to write by hand; `flexo simulate --write` writes it.

docs/reference/traces.md has its columns. Lines that begin with # are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from flexo.model.ranges import Range
from flexo_simulation.alone import alone_s
from flexo_simulation.formats.errors import BadValue, NotSimulated
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import NO_GPUS, ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv
from flexo_simulation.workload import TraceJob, Workload

COLUMNS: Final = ("job_id", "submit_time_s", "gpus", "duration_s")
OPTIONAL: Final = (
    "min_gpus",
    "max_gpus",
    "user",
    "tenant",
    "application",
    "time_limit_s",
    "batch_min",
    "batch_max",
    "gpu_type",
    "opportunistic",
    "fungible",
    "heterogeneous",
    "model",
)


def read(path: Path, options: ReadOptions) -> Workload:
    """Read all jobs; a job with `min_gpus` below `max_gpus` is elastic. Raises BadTrace."""
    sieve = Sieve(path, options)
    with opened(path) as file:
        return sieve.workload(sieve.sift(rows_of_csv(file, sieve.name, COLUMNS, comments=True), _job))


def write(workload: Workload, file: TextIO, comments: Sequence[str] = ()) -> None:
    """Write `workload`, below `comments`. Of a job's speed, only its time on `gpus` GPUs is kept."""
    file.writelines(f"# {line}\n" for line in comments)
    table = csv.writer(file, lineterminator="\n")
    table.writerow((*COLUMNS, *OPTIONAL))
    table.writerows(map(_cells, workload.jobs))


def _job(row: Row) -> TraceJob:
    gpus, duration_s = row.whole("gpus"), row.seconds("duration_s")
    submitted_at = row.moment("submit_time_s")
    if not gpus:
        raise NotSimulated(NO_GPUS)
    job = linear_job(
        submitted_at=submitted_at,
        gpus=gpus,
        duration_s=duration_s,
        line=row.line,
        name=row.text("job_id"),
        user=row.text("user"),
        tenant=row.text("tenant"),
        application=row.text("application"),
        gpu_type=row.text("gpu_type"),
    )
    return replace(
        job,
        workers=_gpu_range(row, gpus),
        time_limit_s=row.whole_or("time_limit_s", 0, least=1) or None,
        batch=_batches(row),
        opportunistic=row.flag("opportunistic"),
        fungible=row.flag("fungible"),
        heterogeneous=row.flag("heterogeneous"),
        model=row.text("model"),
    )


def _gpu_range(row: Row, gpus: int) -> Range:
    """The range from min_gpus to max_gpus; a missing one is `gpus`."""
    low, high = row.whole_or("min_gpus", gpus, least=1), row.whole_or("max_gpus", gpus, least=1)
    if not low <= gpus <= high:
        raise BadValue(f"gpus is {gpus}, min_gpus {low}, max_gpus {high}: gpus must lie between the two")
    return Range(low, high)


def _batches(row: Row) -> Range | None:
    if not row.text("batch_min") and not row.text("batch_max"):
        return None
    low, high = row.whole("batch_min", least=1), row.whole("batch_max", least=1)
    if low > high:
        raise BadValue(f"batch_min is {low}, batch_max {high}: the first may not be the larger")
    return Range(low, high)


def _cells(job: TraceJob) -> tuple[object, ...]:
    gpus = job.shape.gpus
    duration_s = alone_s(job.training, job.requested_workers)
    batch = (job.batch.min, job.batch.max) if job.batch else ("", "")
    return (
        job.name or job.job_id,
        round(job.submitted_at, 3),
        job.requested_workers * gpus,
        round(duration_s, 3),
        job.workers.min * gpus,
        job.workers.max * gpus,
        job.user,
        job.tenant,
        job.application,
        job.time_limit_s or "",
        *batch,
        job.shape.gpu_type,
        *(str(flag).lower() if flag else "" for flag in (job.opportunistic, job.fungible, job.heterogeneous)),
        job.model,
    )
