"""When a job is over, and with which exit code. Pure: it reads the roster and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from horovod_elastic.leader.membership.job_state import BYSTANDERS, JobState
from horovod_elastic.leader.membership.roster import Roster, Worker
from horovod_elastic.leader.membership.states import WorkerState

NO_MODEL = "no worker that holds the model is left"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ends. A negative exit code is the signal that ended a worker."""

    exit_code: int
    why: str


def verdict(job: JobState, roster: Roster, base_workers: int) -> Verdict | None:
    """How the job ends, if it is over now."""
    if not job.founded:
        return _nothing_can_be_founded(job, roster, base_workers)
    if any(worker.member or worker.state is WorkerState.FINISHED for worker in roster.alive()):
        return None
    if job.finishing:
        return Verdict(job.failure or 0, "the script ended")
    return Verdict(job.failure or 1, NO_MODEL)


def _nothing_can_be_founded(job: JobState, roster: Roster, base_workers: int) -> Verdict | None:
    if job.failure is not None:
        return Verdict(job.failure, "a worker failed before training began")
    founders = [worker for worker in roster.workers.values() if not worker.newcomer]
    alive = [worker for worker in founders if worker.alive]
    if not job.finishing or len(founders) < base_workers:
        return None
    if not alive:
        return Verdict(0, "the script ended")
    if all(worker.state is WorkerState.READY for worker in alive):
        return Verdict(1, "some workers ended before hvd.init, in which the others wait for them")
    return None


def end_matters(worker: Worker, was: WorkerState, exit_code: int) -> bool:
    """Whether the end of a worker that is in no generation says something of the job."""
    if was is WorkerState.FINISHED:
        return exit_code not in BYSTANDERS  # lost a peer in hvd.join, and the others went on without it
    return not worker.newcomer
