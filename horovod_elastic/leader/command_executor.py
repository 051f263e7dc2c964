"""Carries out membership's decisions on workers: start, kill and message them, and let them meet."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from flexo_protos.v1 import workers_pb2
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.agent_links import AgentLinks
from horovod_elastic.leader.membership.commands import (
    REFUSALS,
    Abandon,
    Broken,
    Command,
    Go,
    GoBack,
    Kill,
    Leave,
    Prepare,
    Propose,
    RankAssignment,
    Start,
    Withdraw,
)
from horovod_elastic.leader.notices import Notices
from horovod_elastic.leader.oversight import Oversight
from horovod_elastic.rendezvous import Rendezvous
from horovod_elastic.trace import Trace, count, say


@dataclass(frozen=True)
class _Meeting:
    """A generation that is being made: its rendezvous and its workers."""

    rendezvous: Rendezvous
    places: tuple[RankAssignment, ...]


class CommandExecutor:
    """See the module. `address`: address of this node, at which workers meet."""

    def __init__(
        self,
        agents: AgentLinks,
        address: str,
        oversight: Oversight,
        accounting: Accounting,
        notices: Notices,
        trace: Trace,
        rendezvous_failed: Callable[[int, Exception], None],
    ) -> None:
        """`rendezvous_failed`: called in any thread with a generation whose members cannot meet."""
        self._agents = agents
        self._address = address
        self._oversight = oversight
        self._accounting = accounting
        self._notices = notices
        self._trace = trace
        self._rendezvous_failed = rendezvous_failed
        self._meetings: dict[int, _Meeting] = {}

    def carry_out(self, command: Command) -> None:
        """Carry out any command except Dismiss and End, which the leader carries out itself."""
        match command:
            case Start():
                self._start_worker(command)
            case Kill(worker_id, agent, why, quiet):
                if not quiet:
                    say(f"worker {worker_id} on {agent} is killed: {why}")
                kill = workers_pb2.KillWorker(worker_id=worker_id)
                self._agents.tell(agent, workers_pb2.ToAgent(kill_worker=kill))
            case Prepare(generation, places):
                self._prepare(generation, places)
            case Abandon(generation, worker_ids):
                self._abandon(generation, worker_ids)
            case Go(parks=True):
                self._pause(command)
            case Go():
                self._go(command)
            case GoBack(why):
                self._trace.event("go back", why=why)
                say(f"training pauses, and goes back to the last state that was parked in the base: {why}")
            case Propose() | Withdraw() | Broken() | Leave():
                self._pass_on(command)

    def a_member_of(self, generation: int) -> str:
        """A worker of `generation`, if that generation is being made; else ""."""
        meeting = self._meetings.get(generation)
        return meeting.places[0].worker_id if meeting is not None else ""

    def close(self) -> None:
        """Close all rendezvous servers."""
        for meeting in self._meetings.values():
            meeting.rendezvous.close()

    def _pass_on(self, command: Propose | Withdraw | Broken | Leave) -> None:
        """Carry out a command that is only a message to workers."""
        match command:
            case Propose(generation, at, worker_ids):
                self._trace.event("propose", generation=generation, at=at)
                propose = workers_pb2.Propose(generation=generation, at=at)
                self._agents.tell_workers(worker_ids, workers_pb2.ToWorker(propose=propose))
            case Withdraw(generation, at, worker_ids):
                withdraw = workers_pb2.Withdraw(generation=generation, at=at)
                self._agents.tell_workers(worker_ids, workers_pb2.ToWorker(withdraw=withdraw))
            case Broken(generation, worker_ids, why):
                self._trace.event("broken", generation=generation, why=why)
                broken = workers_pb2.Broken(generation=generation, why=why)
                self._agents.tell_workers(worker_ids, workers_pb2.ToWorker(broken=broken))
            case Leave(worker_id, why):
                if why in REFUSALS:
                    say(f"worker {worker_id} cannot join: {why}")
                leave = workers_pb2.Leave(reason=why)
                self._agents.tell_worker(worker_id, workers_pb2.ToWorker(leave=leave))

    def _start_worker(self, start: Start) -> None:
        projected_rank = start.projected_rank
        self._agents.homes[start.worker_id] = start.agent
        order = workers_pb2.StartWorker(
            worker_id=start.worker_id,
            slot=start.slot,
            newcomer=start.newcomer,
            projected_rank=workers_pb2.ProjectedRank(
                rank=projected_rank.rank,
                size=projected_rank.size,
                local_rank=projected_rank.local_rank,
                local_size=projected_rank.local_size,
                cross_rank=projected_rank.cross_rank,
                cross_size=projected_rank.cross_size,
            ),
            unit=start.unit,
        )
        self._trace.event("start", worker=start.worker_id, agent=start.agent, newcomer=start.newcomer)
        self._agents.tell(start.agent, workers_pb2.ToAgent(start_worker=order))

    def _prepare(self, generation: int, places: tuple[RankAssignment, ...]) -> None:
        ranks = {f"{place.agent}:{place.local_rank}": _rank_line(place) for place in places}
        failed = partial(self._rendezvous_failed, generation)
        rendezvous = Rendezvous(self._address, ranks, secrets.token_hex(16), failed)
        meeting = self._meetings[generation] = _Meeting(rendezvous, places)
        self._trace.event("prepare", generation=generation, workers=len(places))
        for place in places:
            prepare = workers_pb2.Prepare(
                generation=generation,
                rank=place.rank,
                size=place.size,
                local_rank=place.local_rank,
                local_size=place.local_size,
                cross_rank=place.cross_rank,
                cross_size=place.cross_size,
                hostname=place.agent,
                rendezvous_address=meeting.rendezvous.address,
                rendezvous_port=meeting.rendezvous.port,
            )
            self._agents.tell_worker(place.worker_id, workers_pb2.ToWorker(prepare=prepare))

    def _abandon(self, generation: int, worker_ids: tuple[str, ...]) -> None:
        self._trace.event("abandon", generation=generation)
        abandon = workers_pb2.Abandon(generation=generation)
        self._agents.tell_workers(worker_ids, workers_pb2.ToWorker(abandon=abandon))
        if meeting := self._meetings.pop(generation, None):
            _close(meeting)

    def _go(self, go: Go) -> None:
        self._trace.event("go", generation=go.generation, sync=go.sync, commits=go.commits)
        places = self._meetings[go.generation].places
        self._oversight.goes(go.generation, [place.worker_id for place in places])
        self._call(go)
        self._close_before(go.generation)
        slots = len({(place.agent, place.slot) for place in places})
        self._notices.sized(self._accounting.workers, slots)
        self._accounting.go(slots)
        nodes = len({place.agent for place in places})
        virtual = f" ({len(places)} virtual ones)" if len(places) > slots else ""
        say(
            f"{count(slots, 'worker')}{virtual} on {count(nodes, 'node')} "
            f"after {count(go.commits, 'batch', 'batches')} (generation {go.generation})"
        )

    def _pause(self, go: Go) -> None:
        """Tell all workers to leave, and rank 0 to park the state before."""
        self._trace.event("pause", generation=go.generation, commits=go.commits)
        self._call(go)
        self._notices.paused(self._accounting.workers)
        self._accounting.go(0)
        self._close_before(go.generation)
        say("training pauses, because too few workers are left; the base keeps the state")

    def _call(self, go: Go) -> None:
        for call in go.calls:
            word = workers_pb2.Go(
                generation=go.generation,
                at=call.at,
                sync=go.sync,
                leave=call.leave,
                aside=call.aside,
                parks=go.parks,
                resumes=go.resumes,
            )
            self._agents.tell_worker(call.worker_id, workers_pb2.ToWorker(go=word))

    def _close_before(self, present: int) -> None:
        """Close the rendezvous servers of generations before the `present` one."""
        for generation in [each for each in self._meetings if each < present]:
            _close(self._meetings.pop(generation))


def _rank_line(place: RankAssignment) -> str:
    """The answer to rank_and_size, as gloo_context.cc parses it."""
    numbers = (place.rank, place.size, place.local_rank, place.local_size)
    return ",".join(map(str, (*numbers, place.cross_rank, place.cross_size)))


def _close(meeting: _Meeting) -> None:
    threading.Thread(target=meeting.rendezvous.close, name="close-rendezvous", daemon=True).start()
