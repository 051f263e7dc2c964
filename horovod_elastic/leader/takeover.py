"""What a new leader of a running job hears before it leads: where each worker says that it stands. Pure.

It leads once everybody of one generation is known and nobody is on the way into the next one; or when no more
is to be heard.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from horovod_elastic.phase import Phase

TAKEOVER_BOUND_S = 15.0
"""How long a new leader waits for agents before it believes their workers to be gone."""
LEAVE_BOUND_S = 300.0
"""How long one that trains may take until its mini-batch has ended and it has left, or switched."""
IN_A_GENERATION = (Phase.TRAINING, Phase.ARRIVED, Phase.FINISHED)


@dataclass(frozen=True, slots=True)
class Standing:
    """All there is to know of a worker, as it says itself (workers.proto, Standing)."""

    phase: Phase
    generation: int = 0
    rank: int = -1
    size: int = 0
    commits: int = 0
    progress: float = 0.0
    boundary: int = 0
    in_loop: bool = False
    holding: bool = False
    prepared: int = 0
    called: int = 0
    going: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that lives already when its agent attaches to a new leader."""

    worker_id: str
    slot: int
    newcomer: bool
    standing: Standing


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
