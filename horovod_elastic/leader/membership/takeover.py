"""What a new leader of a running job hears before it leads: where each worker says that it stands. Pure.

It leads once everybody of one generation is known and nobody is on the way into the next one; or when no more
is to be heard.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from horovod_elastic.leader.membership.job_state import JobState
from horovod_elastic.leader.membership.roster import LEAVE_BOUND_S, Roster, Standing, Worker
from horovod_elastic.leader.membership.states import ScriptEvent, WorkerEvent
from horovod_elastic.phase import Phase

TAKEOVER_BOUND_S = 15.0
"""How long a new leader waits for agents before it believes their workers to be gone."""
IN_A_GENERATION = (Phase.TRAINING, Phase.ARRIVED, Phase.FINISHED)
_FOUND = {
    Phase.STARTING: WorkerEvent.STARTS,
    Phase.READY: WorkerEvent.WAITS,
    Phase.TRAINING: WorkerEvent.TRAINS,
    Phase.ARRIVED: WorkerEvent.ARRIVES,
    Phase.FINISHED: WorkerEvent.FINISHES,
}


@dataclass
class Takeover:
    """What has been heard so far."""

    since: float
    everybody: bool = False
    """No agent will attach that has not yet."""
    standings: dict[str, Standing] = field(default_factory=dict)
    gone: list[tuple[str, int]] = field(default_factory=list)
    """Workers that have ended meanwhile, with their exit codes."""

    def hear(self, worker_id: str, standing: Standing) -> None:
        """What a worker says; its agent may know of a word that it has not heard yet."""
        known = self.standings.get(worker_id)
        called = max(standing.called, 0 if known is None else known.called)
        self.standings[worker_id] = replace(standing, called=called)

    def left(self) -> set[str]:
        """Those who were called away, and have ended as they should."""
        ended = [worker_id for worker_id, exit_code in self.gone if exit_code == 0]
        return {each for each in ended if self.standings[each].called > self.standings[each].generation}

    def may_wait(self, now: float) -> bool:
        """Whether the rest may still come: agents, or workers on their way to a boundary agreed on."""
        gone = {worker_id for worker_id, _ in self.gone}
        under_way = any(
            standing.going or (standing.phase is Phase.TRAINING and standing.called > standing.generation)
            for worker_id, standing in self.standings.items()
            if worker_id not in gone
        )
        if under_way:
            return now < self.since + LEAVE_BOUND_S
        return not self.everybody and now < self.since + TAKEOVER_BOUND_S

    @property
    def generation(self) -> int:
        """The last one that anybody was called to."""
        return max((standing.called for standing in self.standings.values()), default=0)

    def complete(self) -> bool:
        """Whether everybody of that generation has been reported."""
        members = [
            s
            for s in self.standings.values()
            if s.generation == self.generation and s.phase in IN_A_GENERATION
        ]
        return bool(members) and {s.rank for s in members} >= set(range(members[0].size))


def settle_all(
    takeover: Takeover, job: JobState, roster: Roster, whole: bool, now: float
) -> dict[str, Standing]:
    """Where everybody stands, in this leader's words; those who are members of the generation.

    `whole`: everybody of the generation is known.
    """
    left = takeover.left()
    members = {
        worker_id: standing
        for worker_id, standing in takeover.standings.items()
        if standing.phase in IN_A_GENERATION
        and worker_id not in left
        and (standing.generation == job.generation if whole else standing.called > 0)
    }
    for worker_id, standing in takeover.standings.items():
        _settle(roster.workers[worker_id], standing, job, worker_id in members, now)
    for leaver in map(roster.workers.__getitem__, left):
        leaver.life.happens(WorkerEvent.LEAVES)
        if not roster.agent_of(leaver).base:
            roster.agent_of(leaver).has_to_go("the leader before has let its workers go")
    return members


def _settle(worker: Worker, standing: Standing, job: JobState, member: bool, now: float) -> None:
    """Where a worker stands, in this leader's words."""
    worker.in_loop, worker.commits = standing.in_loop, standing.commits
    worker.entered, worker.called = standing.generation, standing.called
    if not member and job.founded:
        worker.newcomer = True
    if standing.phase in IN_A_GENERATION and not member:
        worker.steps_aside(now)
        return
    worker.life.happens(_FOUND[standing.phase])
    if member:
        worker.rank = standing.rank
        job.scalable = job.scalable or standing.in_loop
        job.commits = max(job.commits, standing.commits)
        job.progress = max(job.progress, standing.progress)
        if standing.phase is Phase.FINISHED and not job.finishing:
            job.script(ScriptEvent.FINISHES)
