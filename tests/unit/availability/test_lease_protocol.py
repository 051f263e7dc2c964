"""Which flexod may act, with the clock in hand: never two, whatever is stopped, cut off or asked late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from random import Random

from flexo.availability.lease_protocol import SAFE_PART, LeaseProtocol
from flexo_protos.leader_leases.lease import Found, LeaderLease

LEASE_S = 5.0


@dataclass
class SharedStore:
    """A store in memory."""

    lease: LeaderLease | None = None
    version: int = 0

    def read(self) -> Found:
        return Found(self.lease, self.version)

    def swap(self, version: int, lease: LeaderLease) -> bool:
        if version != self.version:
            return False
        self.lease, self.version = lease, version + 1
        return True


def step(claim: LeaseProtocol, store: SharedStore, now: float) -> bool:
    """One look, and what follows of it, in no time at all. Whether something was written."""
    wanted = claim.wanted(store.read(), now, 0.0)
    if wanted is None or not store.swap(store.version, wanted):
        return False
    claim.wrote(wanted, now)
    return True


def holder(store: SharedStore, now: float, name: str = "a:1") -> LeaseProtocol:
    """A claim that has just won."""
    claim = LeaseProtocol(name, name, LEASE_S)
    store.lease = replace(store.lease or LeaderLease("x", "x", 1), released=True)
    assert step(claim, store, now)
    return claim


def test_an_empty_register_is_waited_at_for_a_lease_because_it_may_have_been_emptied() -> None:
    store, claim = SharedStore(), LeaseProtocol("a", "a:1", LEASE_S)
    assert not step(claim, store, 100.0)
    assert not step(claim, store, 104.9)
    assert step(claim, store, 105.0)
    assert claim.holds(105.0)
    assert (store.lease.address, store.lease.term) == ("a:1", 1)


def test_beats_keep_others_waiting_and_their_end_lets_the_next_one_in() -> None:
    store = SharedStore()
    a, b = holder(store, 0.0), LeaseProtocol("b", "b:1", LEASE_S)
    for now in range(1, 20):
        assert step(a, store, float(now))
        assert not step(b, store, now + 0.5)
    assert a.holds(19.0)
    assert not step(b, store, 24.4)
    assert step(b, store, 24.5), "a whole lease after it saw the last beat"
    assert not a.holds(24.5)
    assert b.term > a.term


def test_who_is_active_stops_acting_before_anybody_may_follow_and_never_begins_again() -> None:
    store = SharedStore()
    a = holder(store, 10.0)
    assert a.holds(10.0 + SAFE_PART * LEASE_S - 0.01)
    assert not a.holds(10.0 + SAFE_PART * LEASE_S)
    assert not step(a, store, 30.0), "stopped for long: not even if nobody has followed"
    assert not a.holds(30.0)


def test_a_late_beat_counts_from_when_it_was_begun() -> None:
    store = SharedStore()
    a = holder(store, 0.0)
    wanted = a.wanted(store.read(), 3.9, 0.0)
    assert wanted is not None
    assert store.swap(store.version, wanted)
    a.wrote(wanted, 3.9)  # the answer came at 7
    assert a.holds(7.0)
    assert not a.holds(7.9)


def test_a_released_turn_is_taken_at_once_and_its_holder_acts_no_more() -> None:
    store = SharedStore()
    a, b = holder(store, 0.0), LeaseProtocol("b", "b:1", LEASE_S)
    farewell = a.farewell(store.lease, 1.0)
    assert farewell is not None
    assert not a.holds(1.0)
    assert store.swap(store.version, farewell)
    assert step(b, store, 1.1)
    assert b.farewell(replace(store.lease, holder="c"), 1.2) is None, "what is another's is left alone"


def test_epochs_go_on_from_the_clock_where_the_register_was_emptied() -> None:
    store, claim = SharedStore(), LeaseProtocol("a", "a:1", LEASE_S)
    claim.wanted(Found(None, 0), 0.0, 1_800_000_000.5)
    wanted = claim.wanted(Found(None, 0), 6.0, 1_800_000_006.5)
    assert wanted is not None
    assert wanted.term == 1_800_000_006
    store.swap(0, wanted)
    after = LeaseProtocol("b", "b:1", LEASE_S)
    after.wanted(Found(wanted, 1), 0.0, 5.0)
    later = after.wanted(Found(wanted, 1), 5.0, 5.0)
    assert later is not None
    assert later.term == 1_800_000_007, "and never back, where its clock is behind"


def test_who_is_active_puts_its_record_back_where_the_register_was_emptied() -> None:
    store = SharedStore()
    a, b = holder(store, 0.0), LeaseProtocol("b", "b:1", LEASE_S)
    step(b, store, 0.1)
    store.lease, store.version = None, 0
    assert not step(b, store, 0.6)
    assert step(a, store, 1.0)
    assert not step(b, store, 5.5)


@dataclass
class Flexod:
    """One process in a random world: it reads, thinks and writes with pauses of any length in between."""

    claim: LeaseProtocol
    rate: float
    """Of its clock."""
    read: Found | None = None
    wanted: LeaderLease | None = None
    began: float = 0.0

    def now(self, at: float) -> float:
        return at * self.rate

    def go_on(self, store: SharedStore, at: float) -> None:
        """The next of its three steps."""
        if self.read is None:
            self.read = store.read()
        elif self.wanted is None:
            self.wanted = self.claim.wanted(self.read, self.now(at), 0.0)
            self.began = self.now(at)
            self.read = None if self.wanted is None else self.read
        else:
            if store.swap(self.read.version, self.wanted):
                self.claim.wrote(self.wanted, self.began)
            self.read = self.wanted = None


PAUSES = (0.01, 0.1, 0.3, 0.3, 0.5, 1.0, 3.6, 4.4, 6.0)


def test_never_do_two_hold_the_turn_in_a_world_of_any_pauses() -> None:
    for seed in range(300):
        _live(Random(seed), f"seed {seed}")


def _live(random: Random, world_name: str) -> None:
    """Pauses between reading, deciding and writing; clocks that run up to a tenth apart; starts anew."""
    store = SharedStore()
    world = [
        (random.random(), number, Flexod(LeaseProtocol(name, name, LEASE_S), random.uniform(0.95, 1.05)))
        for number, name in enumerate("abc")
    ]
    heapify(world)
    turns, last_epoch = 0, 0
    for event in range(400):
        at, number, flexod = heappop(world)
        acting = [
            each for each in (flexod, *(other for _, _, other in world)) if each.claim.holds(each.now(at))
        ]
        assert len(acting) <= 1, world_name
        flexod.go_on(store, at)
        epoch = store.lease.term if store.lease else 0
        assert epoch >= last_epoch, world_name
        turns, last_epoch = turns + (epoch > last_epoch), epoch
        if flexod.claim.won and not flexod.claim.holds(flexod.now(at)):
            flexod = Flexod(LeaseProtocol(f"{number}-{event}", str(number), LEASE_S), flexod.rate)
        heappush(world, (at + random.choice(PAUSES), number, flexod))
    assert turns > 1, world_name
