"""The next step for one server under reclaim: scale in, then preempt, then use force.

Satellites are told to leave at once: they leave within seconds and lose nothing. Bases are left alone as long
as the deadline allows: demand may fall again, or another server may become free. A base that can write a
checkpoint is asked for one before it is preempted. Shortly before the deadline, flexod ends the remaining
jobs by force. The cluster itself preempts the rest, as the inference partition has the higher tier.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexo.loaning.resident_jobs import ResidentJobs
from flexo.model.loans import Loan, LoanState
from flexo.model.queue import JobKey


@dataclass(frozen=True, slots=True)
class Timing:
    """The times before the deadline at which the steps are due, in seconds."""

    save_within_s: float = 60.0
    """Seconds before the preemption, in which a base can write a checkpoint."""
    preempt_within_s: float = 60.0
    """Seconds to end and requeue a base: the time that a job has to end, and the epilog, with room to
    spare."""
    force_within_s: float = 15.0
    """Seconds left when satellites are cancelled that have not left as told."""

    @property
    def longest_s(self) -> float:
        """Seconds from the first step that a base notices to the deadline."""
        return self.preempt_within_s + self.save_within_s


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """An order: workers of `job` leave `node`."""

    job: JobKey
    node: str
    workers: int
    why: str
    grant_id: str = ""
    """The grant; "": no grant is known."""
    satellite_job_id: int = 0
    force: bool = False
    """Whether the satellite is cancelled, whatever its leader does."""


@dataclass(frozen=True, slots=True)
class Save:
    """An order: the leader of `job` is asked for a checkpoint, because `job` is about to be preempted."""

    job: JobKey
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """An order: all of `job` ends, and it waits again."""

    job: JobKey
    node: str
    """The server that the job has to leave; its workers elsewhere end, too."""
    why: str
    force: bool = False
    """Whether the job was told before, and is still there."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The state of checkpoints at this instant."""

    able: frozenset[JobKey] = frozenset()
    """Jobs that can be asked for a checkpoint."""
    done: frozenset[JobKey] = frozenset()
    """Jobs that have answered, whether they have written a checkpoint or not."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that are due for one server, whether they were done before or not."""

    state: LoanState
    scale_in: tuple[ScaleIn, ...] = ()
    save: tuple[Save, ...] = ()
    preempt: tuple[Preempt, ...] = ()


def steps_at(loan: Loan, timing: Timing) -> tuple[float, ...]:
    """The times at which something is due for a server under reclaim: checkpoints, preemptions, force, its
    deadline."""
    assert loan.deadline_at is not None
    deadline_at, preempt_at = loan.deadline_at, loan.deadline_at - timing.preempt_within_s
    return preempt_at - timing.save_within_s, preempt_at, deadline_at - timing.force_within_s, deadline_at


def next_steps(loan: Loan, residents: ResidentJobs, timing: Timing, saving: Saving, now: float) -> Steps:
    """The steps that are due at `now` for a `loan` under reclaim."""
    save_at, preempt_at, force_at, _ = steps_at(loan, timing)
    force = now >= force_at
    why = f"{loan.node} is called back: {loan.why_back}"
    scale_in = tuple(
        ScaleIn(each.job, loan.node, each.workers, why, each.grant_id, each.satellite_job_id, force)
        for each in residents.flexible
        if not each.leaving or (force and each.satellite_job_id)
    )
    there = [base.job for base in residents.bases if not base.leaving]
    save = tuple(
        Save(job, loan.node, why)
        for job in there
        if save_at <= now < preempt_at and job in saving.able and job not in saving.done
    )
    # no base is preempted before this time, whether or not it can write a checkpoint
    preempt = tuple(Preempt(job, loan.node, why, force) for job in there if now >= preempt_at)
    state = loan.state
    if force and not residents.empty:
        state = LoanState.ESCALATED
    elif (preempt or save) and state is LoanState.RECLAIMING:
        state = LoanState.PREEMPTING
    return Steps(state, scale_in, save, preempt)
