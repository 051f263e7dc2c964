"""Reproducible mode: which process has the rank of each virtual worker, and where it runs. Pure.

The script always runs as the same number of processes, each with a rank of its own. A slot carries several of
them. A resize moves virtual workers: a newcomer is started in another slot for a certain rank. At a boundary
it takes over that rank, with everything that belongs to it, and the process that had the rank ends. For each
virtual worker that is elsewhere, a newcomer waits in the base. So a satellite can be given back at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod_elastic.leader.membership.roster import Roster, Worker
from horovod_elastic.leader.membership.states import WorkerState

MOVED = "its virtual worker has moved to another GPU"
_HAS_STATE = (WorkerState.TRAINING, WorkerState.ARRIVED)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for processes: a worker's GPU in a job without virtual workers."""

    agent: str
    number: int


class VirtualWorkers:
    """The virtual workers of a job (see the module). `base`: the base's slots, in the order of its nodes."""

    def __init__(self, count: int, base: Sequence[Slot]) -> None:
        self.count = count
        self._homes = [base[rank * len(base) // count] for rank in range(count)]
        self._targets: dict[int, Slot] = {}

    def settle(self, roster: Roster, limit: int | None) -> None:
        """Decide where each virtual worker is to be: spread evenly, with few moves.

        `limit`: the number of slots to use at most; None: all.
        """
        slots = _slots(roster)[:limit]
        if not slots:
            return
        loads: dict[Slot, list[int]] = {slot: [] for slot in slots}
        for rank, home in enumerate(self._homes):
            at = self._targets.get(rank) or _place_now(roster, rank)
            if at not in loads:
                at = home if home in loads else min(slots, key=lambda slot: len(loads[slot]))
            loads[at].append(rank)
        while True:
            least, most = (pick(slots, key=lambda slot: len(loads[slot])) for pick in (min, max))
            if len(loads[most]) - len(loads[least]) < 2:
                break
            mover = next((each for each in loads[most] if self._homes[each] == least), loads[most][-1])
            loads[most].remove(mover)
            loads[least].append(mover)
        self._targets = {rank: slot for slot, ranks in loads.items() for rank in ranks}

    def missing(self, roster: Roster) -> list[tuple[int, Slot]]:
        """The ranks that lack a process in a slot: where they are to be, and at home."""
        there = {(worker.takes, slot_of(worker)) for worker in roster.alive()}
        slots = set(_slots(roster))
        wanted = [each for each in self._wanted() if each[1] in slots]
        return [each for each in wanted if each not in there]

    def superfluous(self, roster: Roster) -> list[Worker]:
        """The processes that have no rank now, and are to have none."""
        wanted = set(self._wanted())
        outside = [worker for worker in roster.alive() if worker.newcomer and not worker.member]
        return [worker for worker in outside if (worker.takes, slot_of(worker)) not in wanted]

    def order(self, roster: Roster, *, after_loss: bool = False) -> list[Worker] | None:
        """The process that is to have each rank now; None if there is none for a rank yet.

        `after_loss`: the generation is broken. Whoever has a state keeps its rank then.
        """
        chosen = [self._process_for(rank, roster, after_loss) for rank in range(self.count)]
        there = [worker for worker in chosen if worker is not None]
        return there if len(there) == self.count else None

    def is_hopeless(self, roster: Roster) -> bool:
        """Whether a rank has no process and will have none."""
        return {worker.takes for worker in roster.alive()} != set(range(self.count))

    def _wanted(self) -> list[tuple[int, Slot]]:
        pairs = [*enumerate(self._homes), *self._targets.items()]
        return list(dict.fromkeys(pairs))

    def _process_for(self, rank: int, roster: Roster, after_loss: bool) -> Worker | None:
        def preference(worker: Worker) -> tuple[bool, ...]:
            at_target = slot_of(worker) == self._targets.get(rank) and _comes_whole(worker, roster)
            stays = worker.member
            reasons = (stays, at_target) if after_loss else (at_target, stays)
            away = slot_of(worker) != self._homes[rank]
            return bool(roster.agent_of(worker).leaving), *(not each for each in reasons), away

        able = [
            worker
            for worker in roster.alive()
            if worker.takes == rank
            and (worker.state is WorkerState.READY or (worker.member and worker.state in _HAS_STATE))
        ]
        return min(able, key=preference, default=None)


def slot_of(worker: Worker) -> Slot:
    """The slot that carries the worker."""
    return Slot(worker.agent, worker.slot)


def _slots(roster: Roster) -> list[Slot]:
    """The slots of all agents that stay, those of the base first."""
    agents = sorted((each for each in roster.agents.values() if not each.leaving), key=lambda a: not a.base)
    return [Slot(agent.name, number) for agent in agents for number in range(agent.slots)]


def _place_now(roster: Roster, rank: int) -> Slot | None:
    """Where a virtual worker is or is about to be, for a leader that has found it there."""
    own = [worker for worker in roster.alive() if worker.takes == rank]
    member = min(own, key=lambda worker: not worker.member, default=None)
    guest = next((worker for worker in own if not roster.agent_of(worker).base), member)
    return None if guest is None else slot_of(guest)


def _comes_whole(worker: Worker, roster: Roster) -> bool:
    """Whether a satellite's newcomers are all ready, so that they join in one change."""
    if worker.member or roster.agent_of(worker).base:
        return True
    outside = [each for each in roster.of(worker.agent) if each.alive and not each.member]
    return all(each.state in (WorkerState.READY, WorkerState.LEAVING) for each in outside)
