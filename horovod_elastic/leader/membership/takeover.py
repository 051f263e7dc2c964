"""The takeover of a running job by a new leader: it collects the status of each worker before it leads. Pure.

The leader leads once all members of one generation are known and none is on the way into the next one, or
when no more reports can come.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from horovod_elastic.leader.membership.job_state import JobState
from horovod_elastic.leader.membership.roster import LEAVE_BOUND_S, Roster, Worker, WorkerStatus
from horovod_elastic.leader.membership.states import ScriptEvent, WorkerEvent
from horovod_elastic.phase import Phase

TAKEOVER_BOUND_S = 15.0
"""Longest time that a new leader waits for agents; then it assumes that their workers are gone."""
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
    """The reports of workers to a new leader so far."""

    since: float
    everybody: bool = False
    """Whether all agents have attached, so that no further one will."""
    statuses: dict[str, WorkerStatus] = field(default_factory=dict)
    gone: list[tuple[str, int]] = field(default_factory=list)
    """Workers that have ended since the takeover began, with their exit codes."""

    def hear(self, worker_id: str, status: WorkerStatus) -> None:
        """Take a worker's report. Its highest `called` is kept, because agents may know of a call earlier."""
        known = self.statuses.get(worker_id)
        called = max(status.called, 0 if known is None else known.called)
        self.statuses[worker_id] = replace(status, called=called)

    def left(self) -> set[str]:
        """Workers that an earlier leader told to leave, and that have ended as told."""
        ended = [worker_id for worker_id, exit_code in self.gone if exit_code == 0]
        return {each for each in ended if self.statuses[each].called > self.statuses[each].generation}

    def may_wait(self, now: float) -> bool:
        """Whether agents may still attach, or workers are still on the way to an agreed boundary."""
        gone = {worker_id for worker_id, _ in self.gone}
        under_way = any(
            status.going or (status.phase is Phase.TRAINING and status.called > status.generation)
            for worker_id, status in self.statuses.items()
            if worker_id not in gone
        )
        if under_way:
            return now < self.since + LEAVE_BOUND_S
        return not self.everybody and now < self.since + TAKEOVER_BOUND_S

    @property
    def generation(self) -> int:
        """The last generation that any worker was called to."""
        return max((status.called for status in self.statuses.values()), default=0)

    def complete(self) -> bool:
        """Whether all members of that generation have been reported."""
        members = [
            s
            for s in self.statuses.values()
            if s.generation == self.generation and s.phase in IN_A_GENERATION
        ]
        return bool(members) and {s.rank for s in members} >= set(range(members[0].size))


def settle_all(
    takeover: Takeover, job: JobState, roster: Roster, whole: bool, now: float
) -> dict[str, WorkerStatus]:
    """Set the states of all workers from their reports; return the reports of the generation's members.

    `whole`: whether all members of the generation are known.
    """
    left = takeover.left()
    members = {
        worker_id: status
        for worker_id, status in takeover.statuses.items()
        if status.phase in IN_A_GENERATION
        and worker_id not in left
        and (status.generation == job.generation if whole else status.called > 0)
    }
    for worker_id, status in takeover.statuses.items():
        _settle(roster.workers[worker_id], status, job, worker_id in members, now)
    for leaver in map(roster.workers.__getitem__, left):
        leaver.life.happens(WorkerEvent.LEAVES)
        if not roster.agent_of(leaver).base and not roster.minimum:  # when a job pauses, its agents stay
            roster.agent_of(leaver).has_to_go("the leader before has let its workers go")
    return members


def _settle(worker: Worker, status: WorkerStatus, job: JobState, member: bool, now: float) -> None:
    """Set a worker's state from its report. `member`: whether it is in the generation."""
    worker.in_loop, worker.commits = status.in_loop, status.commits
    worker.entered, worker.called = status.generation, status.called
    if not member and job.founded:
        worker.newcomer = True
    if status.phase in IN_A_GENERATION and not member:
        worker.steps_aside(now)
        return
    worker.life.happens(_FOUND[status.phase])
    if member:
        worker.rank = status.rank
        job.scalable = job.scalable or status.in_loop
        job.commits = max(job.commits, status.commits)
        job.progress = max(job.progress, status.progress)
        if status.phase is Phase.FINISHED and not job.finishing:
            job.script(ScriptEvent.FINISHES)
