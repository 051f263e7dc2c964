"""The next step of a job: its next generation, or its end. Pure: it only reads the roster."""

from __future__ import annotations

from dataclasses import dataclass

from horovod_elastic.leader.membership.job_state import BYSTANDERS, JobState
from horovod_elastic.leader.membership.roster import Roster, Worker
from horovod_elastic.leader.membership.states import WorkerState
from horovod_elastic.leader.membership.virtual_workers import VirtualWorkers

_NO_MODEL = "no worker that holds the model is left"


@dataclass(frozen=True)
class Selection:
    """The members of the next generation by rank (`order`), and the workers that train until it begins
    (`holders`).
    """

    order: list[Worker]
    holders: list[Worker]


def founders(roster: Roster, base_workers: int) -> Selection | None:
    """The first generation: all workers of the base, once all are in hvd.init; None until then."""
    alive = [worker for worker in roster.alive() if not worker.newcomer]
    alive = [each for each in alive if roster.agent_of(each).base or not roster.agent_of(each).leaving]
    ready = [worker for worker in alive if worker.state is WorkerState.READY]
    if len(ready) < base_workers or len(alive) > len(ready):
        return None
    return Selection(roster.in_order([], ready), [])


def survivors(roster: Roster) -> list[Worker]:
    """The rest of a broken generation, once all its members are back at their last commit; else empty.

    The rest of a unit that has lost a worker is on its way out, too.
    """
    members = roster.members()
    if any(worker.state is WorkerState.TRAINING or not roster.is_whole(worker) for worker in members):
        return []
    return [worker for worker in members if worker.state is WorkerState.ARRIVED]


def strangers(roster: Roster, generation: int) -> list[Worker]:
    """The workers that joined in this broken generation, if none was lost: they may act unlike the others.

    A script's control flow may depend on what a newcomer does not get. It then takes part in other
    collectives than the others, and would do so again. Horovod's scripts say what their state is.
    """
    were = [worker for worker in roster.workers.values() if worker.entered == generation]
    if any(not worker.alive or not worker.layout for worker in were):
        return []
    joined = [worker for worker in were if worker.newcomer and worker.first == generation]
    return joined if len(joined) < len(were) else []


def nobody_holds_the_model(staying: list[Worker], commits: int) -> bool:
    """Whether only newcomers are left that had not received the model yet, so that training cannot go on."""
    return max((worker.commits for worker in staying), default=0) == 0 < commits


def recovered(roster: Roster, job: JobState, staying: list[Worker]) -> Selection:
    """The generation after a broken one: the workers `staying`, and those that wait to join."""
    joining = [] if job.finishing else joiners(roster, job.limit, len(staying))
    return Selection(roster.in_order(staying, joining), [])


def resized(roster: Roster, job: JobState, virtual: VirtualWorkers | None = None) -> Selection | None:
    """A planned change, if workers are to join or to go; None if none are, or no change is possible now."""
    members = roster.members()
    if job.finishing or job.doomed or not job.scalable or not members:
        return None
    if not all(w.state is WorkerState.TRAINING and w.entered == job.generation for w in members):
        return None
    if virtual is not None:
        order = virtual.order(roster)
        return None if order in (None, members) else Selection(order or [], members)
    staying = [worker for worker in members if not roster.agent_of(worker).leaving]
    if job.limit is not None:
        staying = staying[: max(1, job.limit)]
    joining = joiners(roster, job.limit, len(staying))
    if len(staying) + len(joining) < job.minimum:
        return Selection([], members)  # the job pauses
    if not staying:
        if not joining:
            return None  # the members hold the model, and no worker could take it over
        staying = members
    if len(staying) == len(members) and not joining and not job.to_renew:
        return None
    return Selection(roster.in_order(staying, joining), members)


def resumed(roster: Roster, job: JobState) -> Selection | None:
    """The generation that goes on from the parked state; None while too few workers are ready for it.

    It waits for the end of all workers that were told to leave: one of them may still park the state.
    """
    if any(worker.state is WorkerState.LEAVING for worker in roster.alive()):
        return None
    joining = joiners(roster, job.limit, 0)
    return None if len(joining) < job.minimum else Selection(roster.in_order([], joining), [])


def joiners(roster: Roster, limit: int | None, staying: int) -> list[Worker]:
    """Newcomers that may join, in order of agent and slot, up to the limit.

    All workers of their agent that are not members must be ready, and their units whole.
    """
    result: list[Worker] = []
    for agent in roster.agents.values():
        outside = [w for w in roster.of(agent.name) if w.alive and not w.member]
        ready = all(w.state is WorkerState.READY and roster.is_whole(w) for w in outside)
        if outside and not agent.leaving and ready:
            result += sorted(outside, key=lambda worker: worker.slot)
    return result if limit is None else result[: max(0, limit - staying)]


# --- the end ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of the job. A negative exit code is the signal that ended a worker."""

    exit_code: int
    why: str


def model_lost(job: JobState) -> Verdict:
    """The end of a job that has lost its model: the first worker that failed is the reason, if known."""
    if job.failure is None:
        return Verdict(1, _NO_MODEL)
    where = "; see its traceback" if job.exit_code == 1 else ""
    return failed(job, "first", where)


def failed(job: JobState, when: str, where: str = "") -> Verdict:
    """The end of a job because a worker has failed. `where`: where to read on."""
    if job.failure is None:
        return Verdict(1, f"a worker failed {when}")
    return Verdict(job.exit_code or 1, f"{job.failure.who} failed {when} ({job.failure.how}){where}")


def verdict(job: JobState, roster: Roster, base_workers: int) -> Verdict | None:
    """The end of the job, if it is over now; else None."""
    if job.paused:
        return None
    if not job.founded:
        return _nothing_can_be_founded(job, roster, base_workers)
    if any(worker.member or worker.state is WorkerState.FINISHED for worker in roster.alive()):
        return None
    if job.finishing:
        return Verdict(job.exit_code, "the script ended")
    if job.minimum and any(worker.state is WorkerState.LEAVING for worker in roster.alive()):
        return None  # its end may tell that a satellite was taken away
    return model_lost(job)


def _nothing_can_be_founded(job: JobState, roster: Roster, base_workers: int) -> Verdict | None:
    if job.failure is not None:
        return failed(job, "before training began")
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
    """Whether the end of a worker outside the generation matters to the job.

    `was`: the worker's state before its end.
    """
    if was is WorkerState.FINISHED:
        return exit_code not in BYSTANDERS  # it lost a peer in hvd.join, and the others went on without it
    return not worker.newcomer
