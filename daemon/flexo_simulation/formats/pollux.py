"""Format `pollux`: the workloads of Pollux' own simulator (Qiao et al., OSDI 2021), with its profiles.

A worker is one GPU. Jobs can have from 1 to 64 workers, as in that simulator. `num_replicas` and `batch_size`
are the choices of the users; policies that change neither run jobs with them. Times stay as they are in the
file, because rounds are at multiples of 60 s of these times.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from flexo.model.ranges import Range
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.jobs import one_gpu
from flexo_simulation.formats.reading import STANDARD_INPUT, ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv
from flexo_simulation.pollux_profiles import DECLARED, Application, BadProfile, load_application
from flexo_simulation.pollux_training import PolluxTraining
from flexo_simulation.workload import TraceJob, Workload

COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
_MOST_WORKERS: Final = 64
_TIMES: Final = "seconds from 0"
_PINNED: Final = "ncf"
"""The application that Pollux' simulator never resizes: it has what its user chose, one GPU in the published
workloads."""


def read(path: Path, options: ReadOptions) -> Workload:
    """Read all jobs, with the profiles beside the workloads (`../profiles`) or in `options.profiles`."""
    sieve, folder = Sieve(path, options), _profiles(path, options)
    with opened(path) as file:
        rows = rows_of_csv(file, sieve.name, COLUMNS)
        return sieve.workload(sieve.sift(rows, lambda row: _job(row, folder)), begin=0.0)


def adapted(workload: Workload, *, choose_batch: bool, declare: bool, caution: float = 0.0) -> Workload:
    """`workload`, with jobs that choose their batch instead of their user, or do not declare their epochs.

    A job whose batch is fixed gets no more workers than that batch can be split among.

    `caution`: number of standard errors by which jobs lower their expectations of untried sizes. One
    application keeps its largest batch, because Pollux' own simulator pins it to that.
    """

    def adapt(job: TraceJob) -> TraceJob:
        training = job.training
        if not isinstance(training, PolluxTraining):
            return job
        pinned = training.application.limits.largest if job.application == _PINNED else 0
        batch = pinned if choose_batch else training.batch
        training = replace(training, batch=batch, declared=declare, caution=caution)
        if not batch:
            return replace(job, training=training)
        most = min(job.workers.max, training.application.limits.most_workers_of(batch))
        workers = Range(job.workers.min, max(most, job.requested_workers))
        return replace(job, workers=workers, training=training)

    return replace(workload, jobs=tuple(map(adapt, workload.jobs)))


def _profiles(path: Path, options: ReadOptions) -> Path:
    if options.profiles is not None:
        return options.profiles
    beside = path.resolve().parent.parent / "profiles"
    if path == STANDARD_INPUT or not beside.is_dir():
        raise BadTrace((f"no profiles of its applications at {beside}: say where they are with --profiles",))
    return beside


def _job(row: Row, folder: Path) -> TraceJob:
    return measured_job(row, PolluxTraining(_application(row, folder)))


def measured_job(row: Row, training: PolluxTraining) -> TraceJob:
    """The job of a row, which trains like `training` with the batch of the row. Raises BadValue."""
    application = training.application
    requested, batch = row.whole("num_replicas", least=1), row.whole("batch_size", least=1)
    limits = application.limits
    if not limits.initial <= batch <= limits.largest:
        raise row.refusal(
            "batch_size", f"{limits.initial} to {limits.largest}, as {application.name} was measured"
        )
    most = requested if application.name == _PINNED else max(requested, _MOST_WORKERS)
    return TraceJob(
        job_id=0,
        submitted_at=_submitted_at(row),
        workers=Range(1, most),
        requested_workers=requested,
        shape=one_gpu(),
        training=replace(training, batch=batch),
        application=application.name,
        batch=Range(limits.initial, limits.largest),
        line=row.line,
        name=row.text("name"),
    )


def _submitted_at(row: Row) -> float:
    at = row.number("time", _TIMES)
    if at < 0:
        raise row.refusal("time", _TIMES)
    return at


def _application(row: Row, folder: Path) -> Application:
    name = row.text("application")
    if name not in DECLARED:
        raise row.refusal("application", f"one of {', '.join(DECLARED)}")
    try:
        return load_application(folder, name)
    except BadProfile as error:
        raise BadTrace((str(error),)) from error
