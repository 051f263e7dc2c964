"""What to do now about one server that is called back: scale in, then preempt, then insist.

Satellites are told to go at once: they leave within seconds and lose nothing. Bases are left alone as long as
the deadline allows, because demand may fall again, or another server may come free; before one is preempted
it is asked for a checkpoint where it can write one. What is still there shortly before the deadline is ended
by force; what is left then the cluster preempts itself, as the inference partition has the higher tier.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexo.loaning.occupants import Occupants
from flexo.model.loans import Loan, LoanState
from flexo.model.queue import JobKey


@dataclass(frozen=True, slots=True)
class Timing:
    """How long before the deadline the steps are due, in seconds."""

    save_within_s: float = 60.0
    """Before a preemption: to write a checkpoint in."""
    preempt_within_s: float = 60.0
    """To end and requeue a base in: the time that a job has to end, and the epilog, with room to spare."""
    force_within_s: float = 15.0
    """Left when satellites are cancelled that have not heeded a word."""

    @property
    def longest_s(self) -> float:
        """From the first step that a base notices to the deadline."""
        return self.preempt_within_s + self.save_within_s


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Workers of `job` leave `node`."""

    job: JobKey
    node: str
    workers: int
    why: str
    grant_id: str = ""
    """"": no grant of it is known."""
    satellite_job_id: int = 0
    force: bool = False
    """The satellite is cancelled, whatever its leader does."""


@dataclass(frozen=True, slots=True)
class Save:
    """`job` is about to be preempted: its leader is asked for a checkpoint."""

    job: JobKey
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """All of `job` ends, and it waits again."""

    job: JobKey
    node: str
    """The server that it has to leave; what it has elsewhere goes too."""
    why: str
    force: bool = False
    """It was told before, and is still there."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What is known of checkpoints at this instant."""

    able: frozenset[JobKey] = frozenset()
    """Jobs that can be asked for one."""
    done: frozenset[JobKey] = frozenset()
    """Those that have answered, whether they have written one or not."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What is due for one server, whether it was done before or not."""

    state: LoanState
    scale_in: tuple[ScaleIn, ...] = ()
    save: tuple[Save, ...] = ()
    preempt: tuple[Preempt, ...] = ()


def steps_at(loan: Loan, timing: Timing) -> tuple[float, ...]:
    """When something is due for a called-back server: checkpoints, preemptions, force, its deadline."""
    assert loan.deadline_at is not None
    deadline_at, preempt_at = loan.deadline_at, loan.deadline_at - timing.preempt_within_s
    return preempt_at - timing.save_within_s, preempt_at, deadline_at - timing.force_within_s, deadline_at


def next_steps(loan: Loan, occupants: Occupants, timing: Timing, saving: Saving, now: float) -> Steps:
    """What is due at `now` for a `loan` that is called back."""
    save_at, preempt_at, force_at, _ = steps_at(loan, timing)
    force = now >= force_at
    why = f"{loan.node} is called back: {loan.why_back}"
    scale_in = tuple(
        ScaleIn(each.job, loan.node, each.workers, why, each.grant_id, each.satellite_job_id, force)
        for each in occupants.flexible
        if not each.leaving or (force and each.satellite_job_id)
    )
    there = [base.job for base in occupants.bases if not base.leaving]
    save = tuple(
        Save(job, loan.node, why)
        for job in there
        if save_at <= now < preempt_at and job in saving.able and job not in saving.done
    )
    # who has its checkpoint, or cannot write one, is preempted when its turn comes; nobody before
    preempt = tuple(Preempt(job, loan.node, why, force) for job in there if now >= preempt_at)
    state = loan.state
    if force and not occupants.empty:
        state = LoanState.ESCALATED
    elif (preempt or save) and state is LoanState.CALLED_BACK:
        state = LoanState.PREEMPTING
    return Steps(state, scale_in, save, preempt)
