"""Measured speeds, from ElasticFlow's tables, for jobs of a workload that does not state their speeds.

Without these tables, the speed of such a job is linear in its workers, which is more than any real job
reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flexo.scalability.table import BadTable, TableSpeed
from flexo_simulation.elasticity import drawn
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.table_training import Tables, load_tables, table_training
from flexo_simulation.workload import TraceJob, Workload


def loaded(folder: Path | None) -> Tables | None:
    """Load the tables in `folder`; None: there is no folder. Raises BadTrace."""
    if folder is None:
        return None
    try:
        return load_tables(folder)
    except (BadTable, OSError) as error:
        raise BadTrace((f"--profiles: {error}",)) from error


def with_tables(workload: Workload, tables: Tables, model: str, seed: int) -> Workload:
    """`workload`, whose elastic jobs of unknown speed scale like `model`, at one of its batches.

    `model` "": any model. A job's model and batch depend on its number and the seed. Raises BadTrace for a
    model that is in no table.
    """
    speeds = [speed for (name, _), speed in sorted(tables.speeds.items()) if model in ("", name)]
    if not speeds:
        names = ", ".join(sorted({name for name, _ in tables.speeds}))
        raise BadTrace((f"--model: there is no table of '{model}'; there are {names}",))
    return replace(workload, jobs=tuple(_with_table(job, speeds, seed) for job in workload.jobs))


def _with_table(job: TraceJob, speeds: Sequence[TableSpeed], seed: int) -> TraceJob:
    training = job.training
    if job.workers.min == job.workers.max or not isinstance(training, LinearTraining) or training.speed:
        return job
    speed = speeds[int(drawn(job.job_id, seed, "model") * len(speeds))]
    duration_s = training.work / job.requested_workers
    return replace(job, training=table_training(duration_s, job.requested_workers, speed))
