"""Format `tiresias`: the jobs of Tiresias' simulator (SymbioticLab/Tiresias)."""

from __future__ import annotations

from pathlib import Path

from flexo_simulation.formats.errors import NotSimulated
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import NO_GPUS, ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv
from flexo_simulation.workload import TraceJob, Workload

COLUMNS = ("job_id", "num_gpu", "submit_time", "duration")


def read(path: Path, options: ReadOptions) -> Workload:
    """Read all jobs; `duration` counts, on `num_gpu` GPUs, and `iterations` do not. Raises BadTrace."""
    sieve = Sieve(path, options)
    with opened(path) as file:
        return sieve.workload(sieve.sift(rows_of_csv(file, sieve.name, COLUMNS), _job))


def _job(row: Row) -> TraceJob:
    gpus, duration_s = row.whole("num_gpu"), row.seconds("duration")
    submitted_at = row.moment("submit_time")
    if not gpus:
        raise NotSimulated(NO_GPUS)
    return linear_job(
        submitted_at=submitted_at,
        gpus=gpus,
        duration_s=duration_s,
        line=row.line,
        name=row.text("job_id"),
        application=row.text("model_name"),
    )
