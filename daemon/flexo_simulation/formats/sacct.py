"""Format `sacct`: the workload in a dump of Slurm's accounting, with the real running times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.jobs import linear_job
from flexo_simulation.formats.reading import NO_GPUS, ReadOptions, in_order
from flexo_simulation.formats.sacct_dump import SacctDump, SacctRun, read_dump
from flexo_simulation.workload import TraceJob, Workload


def read(path: Path, options: ReadOptions) -> Workload:
    """Read every run of a GPU job in the dump as a job. Raises BadTrace."""
    return workload_of(read_dump(path, options))


def workload_of(dump: SacctDump) -> Workload:
    """The workload of the dump's runs, none elastic yet. Raises BadTrace if there is none."""
    if not dump.runs:
        reasons = ", ".join(f"{each.jobs} {each.why}" for each in dump.left_out) or "none is a job"
        hint = "; Slurm counts GPUs only where AccountingStorageTRES in slurm.conf has gres/gpu"
        if not any(each.why == NO_GPUS for each in dump.left_out):
            hint = ""
        raise BadTrace((f"{dump.name}: holds no run of a GPU job: of its lines, {reasons}{hint}",))
    return Workload(dump.name, in_order(map(_job, dump.runs)), dump.skipped, dump.left_out, dump.notes)


def _job(run: SacctRun) -> TraceJob:
    job = linear_job(
        submitted_at=run.ready_at,
        gpus=run.gpus,
        duration_s=run.elapsed_s,
        line=run.line,
        name=run.job_id,
        user=run.user,
        tenant=run.account,
        application=run.job_name,
        gpu_type=run.gpu_type,
    )
    return replace(job, time_limit_s=run.time_limit_s)
