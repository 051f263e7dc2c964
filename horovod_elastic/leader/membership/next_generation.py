"""Who shall be in the next generation. Pure: it reads the roster and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from horovod_elastic.leader.membership.job_state import JobState
from horovod_elastic.leader.membership.roster import Roster, Worker
from horovod_elastic.leader.membership.states import WorkerState


@dataclass(frozen=True)
class Selection:
    """The members of the next generation by rank, and those who train until it begins."""

    order: list[Worker]
    holders: list[Worker]


def founders(roster: Roster, base_workers: int) -> Selection | None:
    """The first generation: every worker of the base, once all of them are in hvd.init. None: not yet."""
    alive = [worker for worker in roster.alive() if not worker.newcomer]
    ready = [worker for worker in alive if worker.state is WorkerState.READY]
    if len(ready) < base_workers or len(alive) > len(ready):
        return None
    return Selection(roster.in_order([], ready), [])


def survivors(roster: Roster) -> list[Worker]:
    """After a generation broke: who is left, once all are back at their last commit. Empty: not yet."""
    members = roster.members()
    if any(worker.state is WorkerState.TRAINING for worker in members):
        return []
    return [worker for worker in members if worker.state is WorkerState.ARRIVED]


def nobody_holds_the_model(staying: list[Worker], commits: int) -> bool:
    """Only newcomers that had not received the model yet are left: nothing to go on from."""
    return max((worker.commits for worker in staying), default=0) == 0 < commits


def recovered(roster: Roster, job: JobState, staying: list[Worker]) -> Selection:
    """After a generation broke: `staying`, and who waits to join."""
    joining = [] if job.finishing else joiners(roster, job.limit, len(staying))
    return Selection(roster.in_order(staying, joining), [])


def resized(roster: Roster, job: JobState) -> Selection | None:
    """A planned change, if anybody is to join or to go. None: nobody is, or it cannot be planned now."""
    members = roster.members()
    if job.finishing or job.doomed or not job.scalable or not members:
        return None
    if not all(w.state is WorkerState.TRAINING and w.entered == job.generation for w in members):
        return None
    staying = [worker for worker in members if not roster.agent_of(worker).leaving]
    if job.limit is not None:
        staying = staying[: max(1, job.limit)]
    joining = joiners(roster, job.limit, len(staying))
    if not staying:
        if not joining:
            return None  # they hold the model: somebody has to take it over first
        staying = members
    if len(staying) == len(members) and not joining:
        return None
    return Selection(roster.in_order(staying, joining), members)


def joiners(roster: Roster, limit: int | None, staying: int) -> list[Worker]:
    """Newcomers of agents all of whose workers are ready, in order of agent and slot, up to the limit."""
    result: list[Worker] = []
    for agent in roster.agents.values():
        outside = [w for w in roster.of(agent.name) if w.alive and not w.member]
        if outside and not agent.leaving and all(w.state is WorkerState.READY for w in outside):
            result += sorted(outside, key=lambda worker: worker.slot)
    return result if limit is None else result[: max(0, limit - staying)]
