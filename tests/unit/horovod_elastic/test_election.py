"""Algorithm 1: who of a job's agents leads, who follows, and how a leader learns that it leads no more.

The rules are tried in a small world of agents over the real table, in simulated time; threads and the loop
around them with a table whose time the test moves.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flexo_protos.leader_leases.lease import HeldLease, LeaderLease, StoreUnavailable
from flexo_protos.leader_leases.table import LeaseKey, LeaseTable
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic import wire
from horovod_elastic.election import election
from horovod_elastic.election.election import (
    Candidate,
    Closed,
    Election,
    Following,
    Leading,
    Over,
    Pause,
    Role,
)

KEY = LeaseKey(1000, 7, 0, "r")
TTL_S = 5.0
VACANT = LeaderLease("", "", 0, 0, 0.0)
A_LEADS = LeaderLease("a", "a:1", 3, 0, 4.0)
A = Following("a:1", "a", 3)
BOUND_S = 60.0


def candidate(role: Role = Role.BASE, me: str = "b", **more: object) -> Candidate:
    return Candidate(me, role, TTL_S, 100.0, **more)  # type: ignore[arg-type]


# --- the rules ---


def test_who_gets_the_lease_leads_and_who_does_not_follows() -> None:
    assert candidate().heard(A_LEADS, True, 100.0) == A
    assert candidate().heard(LeaderLease("b", "b:1", 4, 0, 5.0), True, 100.0) == Leading(4, heir=True)


@pytest.mark.parametrize(
    ("role", "seen", "previous", "heir"),
    [
        (Role.FOUNDER, 0, 0, False),
        (Role.FOUNDER, 0, 3, True),
        (Role.FOUNDER, 3, 0, True),
        (Role.BASE, 0, 0, True),
        (Role.SATELLITE, 0, 0, True),
    ],
)
def test_only_a_founder_that_knows_of_no_leader_is_the_first(
    role: Role, seen: int, previous: int, heir: bool
) -> None:
    got = candidate(role, seen=seen).heard(LeaderLease("b", "b:1", 4, previous, 5.0), True, 100.0)
    assert got == Leading(4, heir)


def test_a_founder_says_so_until_it_has_heard_of_a_leader() -> None:
    assert candidate(Role.FOUNDER).claim == pb.CLAIM_FOUNDER
    assert candidate(Role.FOUNDER, seen=3).claim == pb.CLAIM_UNSPECIFIED
    assert candidate(Role.BASE).claim == pb.CLAIM_UNSPECIFIED


def test_the_bases_agents_ask_at_once_and_a_satellites_agent_when_it_has_been_vacant_for_a_while() -> None:
    assert candidate(Role.FOUNDER).wants_it(100.0)
    assert candidate(Role.BASE).wants_it(100.0)
    satellite = candidate(Role.SATELLITE)
    assert not satellite.wants_it(100.0)
    pause = satellite.heard(VACANT, False, 100.5)
    assert pause == Pause(election.HOLD_BACK_S)
    assert not satellite.wants_it(100.5 + election.HOLD_BACK_S - 0.1)
    assert satellite.wants_it(100.5 + election.HOLD_BACK_S)


def test_an_agent_that_only_follows_never_asks_for_the_lease() -> None:
    follower = candidate(Role.FOLLOWER, lost=A)
    assert follower.heard(VACANT, False, 100.0) == Pause(election.LOOK_AGAIN_S)
    assert not follower.wants_it(100.0 + 10 * election.HOLD_BACK_S)
    assert follower.heard(LeaderLease("c", "c:1", 4, 3, 5.0), False, 200.0) == Following("c:1", "c", 4)


def test_a_satellites_agent_waits_anew_when_somebody_led_in_between() -> None:
    satellite = candidate(Role.SATELLITE, lost=A)
    satellite.heard(VACANT, False, 100.0)
    satellite.heard(A_LEADS, False, 101.0)
    satellite.heard(VACANT, False, 104.0)
    assert not satellite.wants_it(105.0)


def test_a_satellites_agent_that_is_named_the_successor_does_not_wait() -> None:
    satellite = candidate(Role.SATELLITE, lost=A)
    assert satellite.heard(LeaderLease("b", "", 4, 3, 5.0), False, 100.0) == Pause(0.0)
    assert satellite.wants_it(100.0)
    assert satellite.heard(LeaderLease("b", "b:1", 4, 3, 5.0), True, 100.0) == Leading(4, heir=True)


def test_a_leader_that_was_lost_is_not_named_again_before_it_must_have_refreshed() -> None:
    looking = candidate(lost=A)
    assert looking.heard(A_LEADS, True, 100.0) == Pause(election.LOOK_AGAIN_S)
    assert looking.heard(LeaderLease("a", "a:1", 3, 0, 0.3), True, 103.7) == Pause(0.3 + 0.02)
    assert looking.heard(A_LEADS, True, 106.0) == A


def test_a_lost_leader_that_was_started_again_is_another_one() -> None:
    assert candidate(lost=A).heard(LeaderLease("a", "a:2", 4, 3, 4.0), True, 100.0) == Following(
        "a:2", "a", 4
    )


def test_a_successor_is_waited_for_until_it_has_said_its_address() -> None:
    looking = candidate(lost=A)
    assert looking.heard(LeaderLease("c", "", 4, 3, 5.0), True, 100.0) == Pause(election.SUCCESSOR_WITHIN_S)
    assert looking.heard(LeaderLease("c", "c:1", 4, 3, 5.0), True, 100.1) == Following("c:1", "c", 4)


def test_who_looks_after_the_jobs_end_learns_its_exit_code() -> None:
    assert candidate().heard(LeaderLease(wire.over(3), "", 4, 3, 5.0), True, 100.0) == Over(3)


def test_a_server_that_has_just_begun_is_asked_again() -> None:
    assert candidate().heard(LeaderLease("", "", 0, 0, 8.0), True, 100.0) == Pause(election.LOOK_AGAIN_S)
    assert candidate().heard(LeaderLease("", "", 0, 0, 0.5), True, 100.0) == Pause(0.5)


def test_while_the_server_is_away_the_leader_that_was_lost_is_tried_once_more() -> None:
    looking = candidate(lost=A)
    assert looking.away(100.0) == Pause(election.LOOK_AGAIN_S)
    assert looking.away(100.0 + election.LEADERLESS_S) == A
    assert candidate().away(1000.0) == Pause(election.LOOK_AGAIN_S)


def test_a_leader_is_certain_for_a_leases_length_from_when_it_last_asked() -> None:
    held = HeldLease(LeaderLease("a", "a:1", 3, 0, 5.0), 100.0, TTL_S)
    assert held.certain(104.9)
    assert not held.certain(105.0)
    assert held.heard(A_LEADS, 104.0)
    assert held.certain(108.9)
    assert not held.certain(109.0)


def test_a_leader_whose_lease_the_server_had_forgotten_takes_the_new_term() -> None:
    held = HeldLease(LeaderLease("a", "a:1", 3, 0, 5.0), 100.0, TTL_S)
    assert held.heard(LeaderLease("a", "a:1", 1000, 0, 5.0), 102.0)
    assert held.lease.term == 1000


def test_a_leader_whose_lease_had_run_out_before_the_server_forgot_it_is_not_certain_at_once() -> None:
    held = HeldLease(LeaderLease("a", "a:1", 3, 0, 5.0), 100.0, TTL_S)
    assert held.heard(LeaderLease("a", "a:1", 1000, 0, 5.0), 106.0)
    assert not held.certain(106.5)
    assert held.heard(LeaderLease("a", "a:1", 1000, 0, 5.0), 110.0)
    assert not held.certain(110.5)  # somebody else may have had it until 111
    assert held.certain(111.0)


@pytest.mark.parametrize(
    "lease", [VACANT, LeaderLease("b", "b:1", 4, 3, 4.0), LeaderLease("a", "a:2", 4, 3, 4.0)]
)
def test_a_lease_of_anybody_else_or_nobody_is_lost(lease: LeaderLease) -> None:
    assert not HeldLease(LeaderLease("a", "a:1", 3, 0, 5.0), 100.0, TTL_S).heard(lease, 102.0)


# --- a small world ---


@dataclass
class Member:
    """One agent of the world."""

    name: str
    role: Role
    alive: bool = True
    asleep_until: float = 0.0
    seen: int = 0
    way: Candidate | None = None
    held: HeldLease | None = None
    follows: Following | None = None


class World:
    """Agents over one table, in simulated time; every message takes a while."""

    def __init__(self, delays: list[float]) -> None:
        self.now = 1000.0
        self.table = LeaseTable(self.now)
        self.away_until = 0.0
        self.members = [
            Member("b1", Role.FOUNDER),
            Member("b2", Role.FOUNDER),
            Member("s1", Role.SATELLITE),
            Member("s2", Role.SATELLITE),
        ]
        self._delays = itertools.cycle(delays)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        for member in self.members:
            self._candidate(member, None)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.check()
        self.now = end
        self.check()

    def check(self) -> None:
        certain = [m.name for m in self.members if m.held is not None and m.held.certain(self.now)]
        assert len(certain) <= 1, f"two leaders are certain: {certain}"

    def leaders(self) -> list[Member]:
        return [m for m in self.members if m.alive and m.held is not None]

    def kill(self, member: Member) -> None:
        member.alive, member.held, member.way, member.follows = False, None, None, None
        self._dropped_by(member)

    def start_again(self, member: Member) -> None:
        if not member.alive:
            member.alive, member.role, member.seen = True, Role.BASE, 0
            member.name += "'"  # in this world a new process has a new name
            self._candidate(member, None)

    def stop(self, member: Member, seconds: float) -> None:
        member.asleep_until = self.now + seconds
        self._dropped_by(member)

    def hand_over(self, member: Member, successor: Member) -> None:
        if member.held is None or self.now < self.away_until or member.asleep_until > self.now:
            return
        member.held = None
        self.table.release(KEY, member.name, successor.name, self.now)
        self._dropped_by(member)
        self._candidate(member, None)

    def restart_server(self) -> None:
        self.table = LeaseTable(self.now, grace_s=10.0, first_term=int(self.now * 1000))

    def _dropped_by(self, leader: Member) -> None:
        for member in self.members:
            if member.alive and member.follows is not None and member.follows.holder == leader.name:
                lost, member.follows = member.follows, None
                self._candidate(member, lost)

    def _candidate(self, member: Member, lost: Following | None) -> None:
        member.way = Candidate(member.name, member.role, TTL_S, self.now, seen=member.seen, lost=lost)
        self._later(0.0, lambda: self._ask(member, member.way))

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), event))

    def _when_awake(self, member: Member, event: Callable[[], None]) -> bool:
        """False if `member` is stopped: `event` comes when it goes on."""
        if member.asleep_until > self.now:
            self._later(member.asleep_until - self.now, event)
            return False
        return True

    def _ask(self, member: Member, way: Candidate | None) -> None:
        if (
            way is None
            or member.way is not way
            or not self._when_awake(member, lambda: self._ask(member, way))
        ):
            return
        asked_at, asking = self.now, way.wants_it(self.now)
        request = pb.AcquireRequest(
            holder=member.name, address=member.name + ":1", ttl_s=TTL_S, claim=way.claim, seen=member.seen
        )

        def served() -> None:
            lease = None
            if self.now >= self.away_until:
                lease = (
                    self.table.acquire(KEY, request, self.now) if asking else self.table.look(KEY, self.now)
                )
            self._later(next(self._delays), lambda: self._heard(member, way, lease, asking, asked_at))

        self._later(next(self._delays), served)

    def _heard(
        self, member: Member, way: Candidate, lease: LeaderLease | None, asking: bool, asked_at: float
    ) -> None:
        if member.way is not way or not self._when_awake(
            member, lambda: self._heard(member, way, lease, asking, asked_at)
        ):
            return
        outcome = way.away(self.now) if lease is None else way.heard(lease, asking, self.now)
        if isinstance(outcome, Pause):
            self._later(outcome.seconds, lambda: self._ask(member, way))
            return
        member.way = None
        if isinstance(outcome, Leading):
            assert lease is not None
            assert outcome.term > member.seen
            member.seen = outcome.term
            member.held = HeldLease(lease, asked_at, TTL_S)
            self._later(TTL_S / 3, lambda: self._refresh(member, member.held))
        elif isinstance(outcome, Following):
            member.seen = max(member.seen, outcome.term)
            leader = next((m for m in self.members if m.name == outcome.holder), None)
            if leader is not None and leader.alive and leader.asleep_until <= self.now and leader.held:
                member.follows = outcome
            else:  # cannot be dialled
                self._candidate(member, outcome)

    def _refresh(self, member: Member, held: HeldLease | None) -> None:
        if (
            held is None
            or member.held is not held
            or not self._when_awake(member, lambda: self._refresh(member, held))
        ):
            return
        asked_at = self.now
        request = pb.AcquireRequest(
            holder=member.name,
            address=member.name + ":1",
            ttl_s=TTL_S,
            claim=pb.CLAIM_HOLDER,
            seen=held.lease.term,
        )

        def served() -> None:
            lease = self.table.acquire(KEY, request, self.now) if self.now >= self.away_until else None
            self._later(next(self._delays), lambda: self._refreshed(member, held, lease, asked_at))

        self._later(next(self._delays), served)

    def _refreshed(self, member: Member, held: HeldLease, lease: LeaderLease | None, asked_at: float) -> None:
        if member.held is not held or not self._when_awake(
            member, lambda: self._refreshed(member, held, lease, asked_at)
        ):
            return
        if lease is not None and not held.heard(lease, asked_at):
            member.held = None
            self._dropped_by(member)
            self._candidate(member, None)
            return
        member.seen = max(member.seen, held.lease.term)
        self._later(TTL_S / 3, lambda: self._refresh(member, held))


@dataclass(frozen=True)
class Trouble:
    """After `pause_s`, `what` happens to `who`; `more` is a length of time or another agent."""

    pause_s: float
    what: str
    who: int
    more: float


DELAYS = st.lists(st.sampled_from([0.0, 0.003, 0.2, 1.1]), min_size=1, max_size=7)
PAUSES = st.sampled_from([0.0, 0.4, 1.0, 3.0, 5.0, 7.0])


def troubles(*kinds: str) -> st.SearchStrategy[list[Trouble]]:
    one = st.builds(
        Trouble,
        pause_s=PAUSES,
        what=st.sampled_from(kinds),
        who=st.integers(0, 3),
        more=st.sampled_from([0.5, 2.0, 6.0, 20.0]),
    )
    return st.lists(one, max_size=15)


def live_through(world: World, history: list[Trouble]) -> None:
    world.run(5.0)
    for trouble in history:
        world.run(trouble.pause_s)
        member = world.members[trouble.who]
        if trouble.what == "kill":
            world.kill(member)
        elif trouble.what == "start again":
            world.start_again(member)
        elif trouble.what == "stop":
            world.stop(member, trouble.more)
        elif trouble.what == "hand over":
            world.hand_over(member, world.members[int(trouble.more) % 4])
        elif trouble.what == "away":
            world.away_until = world.now + trouble.more
        elif trouble.what == "restart":
            world.restart_server()


def everybody_follows_one(world: World) -> None:
    living = [member for member in world.members if member.alive]
    if living:
        (leader,) = world.leaders()
        assert all(m is leader or (m.follows and m.follows.holder == leader.name) for m in living)


@given(DELAYS, troubles("kill", "start again", "stop", "hand over", "away"))
def test_two_leaders_are_never_certain_and_in_the_end_everybody_follows_one(
    delays: list[float], history: list[Trouble]
) -> None:
    world = World(delays)
    live_through(world, history)
    world.run(60.0)
    everybody_follows_one(world)


@given(DELAYS, troubles("kill", "start again", "away", "restart"))
@example(
    delays=[0.2, 1.1, 0.2],
    history=[
        Trouble(5.0, "restart", 0, 0.5),
        Trouble(0.0, "kill", 0, 0.5),
        Trouble(7.0, "away", 0, 2.0),
        Trouble(7.0, "away", 0, 0.5),  # the leader's lease runs out, and another agent takes it
        Trouble(1.0, "start again", 0, 0.5),
        Trouble(1.0, "kill", 2, 0.5),
        Trouble(0.4, "restart", 0, 0.5),  # before the former leader has heard of that
    ],
)
def test_a_server_that_forgets_everything_deposes_nobody_who_leads(
    delays: list[float], history: list[Trouble]
) -> None:
    world = World(delays)
    live_through(world, history)
    world.run(60.0)
    everybody_follows_one(world)
    if leaders := world.leaders():
        leader = leaders[0].name
        world.restart_server()
        world.run(60.0)
        assert [member.name for member in world.leaders()] == [leader]
        everybody_follows_one(world)


# --- the loop and its thread ---


class TableClient:
    """A LeaseClient over a table in this process, whose time a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self.asked = threading.Semaphore(0)
        self._table = LeaseTable(0.0)
        self._lock = threading.Lock()

    def acquire(
        self,
        holder: str,
        address: str,
        ttl_s: float,
        claim: pb.Claim.ValueType = pb.CLAIM_UNSPECIFIED,
        seen: int = 0,
    ) -> LeaderLease:
        request = pb.AcquireRequest(holder=holder, address=address, ttl_s=ttl_s, claim=claim, seen=seen)
        return self._answer(lambda: self._table.acquire(KEY, request, self.now))

    def look(self) -> LeaderLease:
        return self._answer(lambda: self._table.look(KEY, self.now))

    def release(self, holder: str, successor: str = "") -> LeaderLease:
        return self._answer(lambda: self._table.release(KEY, holder, successor, self.now))

    def close(self) -> None:
        pass

    def _answer(self, what: Callable[[], LeaderLease]) -> LeaderLease:
        try:
            with self._lock:
                if self.away:
                    raise StoreUnavailable("the store is away")
                return what()
        finally:
            self.asked.release()

    def wait_for(self, calls: int) -> None:
        for _ in range(calls):
            assert self.asked.acquire(timeout=BOUND_S), "it was not asked"


@dataclass
class Agent:
    """An Election with what it said and lost."""

    election: Election
    said: list[str] = field(default_factory=list)
    lost: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)


def agent(store: TableClient, name: str, role: Role = Role.FOUNDER, ttl_s: float = TTL_S) -> Agent:
    said: list[str] = []
    made = Election(
        store, name, lambda: f"{name}:1", role, ttl_s=ttl_s, say=said.append, clock=lambda: store.now
    )
    return Agent(made, said)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TableClient:
    monkeypatch.setattr(election, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(election, "SUCCESSOR_WITHIN_S", 0.01)
    return TableClient()


def in_thread(work: Callable[[], object]) -> queue.SimpleQueue[object]:
    result: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Thread(target=lambda: result.put(work()), daemon=True).start()
    return result


def test_the_first_leads_and_the_second_is_told_its_address(store: TableClient) -> None:
    a, b = agent(store, "a"), agent(store, "b")
    assert a.election.follow() == Leading(1, heir=False)
    assert b.election.follow() == Following("a:1", "a", 1)
    assert (a.election.term, b.election.term) == (1, 1)
    assert a.election.certain()
    assert not b.election.certain()


def test_when_a_leaders_lease_runs_out_who_lost_it_takes_it(store: TableClient) -> None:
    a, b = agent(store, "a"), agent(store, "b")
    a.election.follow()
    following = b.election.follow()
    assert isinstance(following, Following)
    outcome = in_thread(lambda: b.election.follow(lost=following))
    store.wait_for(4)
    store.now = TTL_S
    assert outcome.get(timeout=BOUND_S) == Leading(2, heir=True)


def test_a_leader_that_resigns_names_its_successor(store: TableClient) -> None:
    a, b, c = agent(store, "a"), agent(store, "b", Role.SATELLITE), agent(store, "c")
    a.election.follow()
    following = c.election.follow()
    assert isinstance(following, Following)
    assert a.election.resign("b")
    assert not a.election.certain()
    told = in_thread(lambda: c.election.follow(lost=following))
    assert b.election.follow(lost=following) == Leading(2, heir=True)
    assert told.get(timeout=BOUND_S) == Following("b:1", "b", 2)


def test_an_agent_leads_under_a_term_above_all_that_it_has_been_told_of(store: TableClient) -> None:
    a = agent(store, "a")
    a.election.note_term(41)
    assert a.election.follow() == Leading(42, heir=True)


def test_a_leader_refreshes_and_stays_certain(store: TableClient) -> None:
    a = agent(store, "a", ttl_s=0.15)
    a.election.follow()
    a.election.keep(a.lost.put)
    store.now = 0.14
    store.wait_for(3)
    store.now = 0.2
    assert a.election.certain()
    a.election.close()


def test_a_leader_that_slept_learns_with_its_first_refresh_who_leads(store: TableClient) -> None:
    a, b = agent(store, "a", ttl_s=0.3), agent(store, "b")
    a.election.follow()
    store.now = 1.0
    assert not a.election.certain()
    assert b.election.follow() == Leading(2, heir=True)
    a.election.keep(a.lost.put)
    assert a.lost.get(timeout=BOUND_S) == "b"
    assert a.election.fencing_term == 1, "not that of the leader that it has just heard of"
    assert a.election.follow() == Following("b:1", "b", 2)
    assert (a.election.fencing_term, b.election.fencing_term) == (1, 2)


def test_a_leader_goes_on_leading_while_the_server_is_away_and_says_so_once(store: TableClient) -> None:
    a = agent(store, "a", ttl_s=0.15)
    a.election.follow()
    store.away = True
    a.election.keep(a.lost.put)
    store.wait_for(5)
    store.now = 0.2
    assert not a.election.certain()
    assert a.lost.empty()
    store.away = False
    store.wait_for(3)
    assert a.election.certain()
    assert a.lost.empty()
    assert len(a.said) == 2
    a.election.close()


def test_a_leader_that_resigned_refreshes_no_more_and_loses_nothing(store: TableClient) -> None:
    a = agent(store, "a", ttl_s=0.06)
    a.election.follow()
    a.election.keep(a.lost.put)
    assert a.election.resign()
    assert a.election.resign()
    time.sleep(0.1)
    assert store.look().vacant
    assert a.lost.empty()


def test_resigning_while_the_server_is_away_says_that_the_lease_runs_out_by_itself(
    store: TableClient,
) -> None:
    a = agent(store, "a")
    a.election.follow()
    store.away = True
    assert not a.election.resign("b")
    assert "runs out" in a.said[-1]


def test_without_the_server_an_agent_is_sent_back_to_the_leader_that_it_lost(
    store: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "LEADERLESS_S", 0.0)
    b = agent(store, "b")
    store.away = True
    assert b.election.follow(lost=A) == A
    assert b.election.term == 3


def test_an_election_that_is_closed_lets_go_of_who_waits(store: TableClient) -> None:
    store.away = True
    b = agent(store, "b")

    def wait() -> object:
        try:
            return b.election.follow()
        except Closed:
            return "closed"

    outcome = in_thread(wait)
    store.wait_for(1)
    b.election.close()
    assert outcome.get(timeout=BOUND_S) == "closed"


def test_many_agents_at_once_elect_one_leader(store: TableClient) -> None:
    agents = [agent(store, f"n{number}") for number in range(16)]
    results = [in_thread(a.election.follow) for a in agents]
    outcomes = [result.get(timeout=BOUND_S) for result in results]
    assert sum(isinstance(outcome, Leading) for outcome in outcomes) == 1
    assert len({outcome.address for outcome in outcomes if isinstance(outcome, Following)}) == 1
