"""What every store of a leader lease does, and every way to a job's lease: one set of tests for all of them.

A test file inherits a class, and says in its fixture what is to be tried. The folder and the table in memory
are tried in tests/unit/protos/test_lease_contracts.py, etcd in tests/etcd/test_lease_contracts_in_etcd.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from flexo.availability.leader_elector import LeaderElector
from flexo_protos.leader_leases.lease import LeaderLease, LeaseStore
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.election.lease_client import LeaseClient

A = LeaderLease("ta", "a:1", 5)
B = LeaderLease("tb", "b:1", 9)
MANY = 16
LASTING_S = 60.0
"""Of a lease that is not to run out."""

Opens = Callable[[], LeaseStore]
Asks = Callable[[], LeaseClient]


def at_once(what: Callable[[int], bool]) -> int:
    """How many of MANY threads that begin together have `what` return True."""
    barrier = threading.Barrier(MANY)

    def begin(number: int) -> bool:
        barrier.wait()
        return what(number)

    with ThreadPoolExecutor(MANY) as pool:
        return sum(pool.map(begin, range(MANY)))


class StoreContract:
    """`opens`, a fixture: each call opens the store of the same lease, which nobody has held before."""

    def test_at_first_there_is_no_lease(self, opens: Opens) -> None:
        found = opens().read()
        assert (found.lease, found.version) == (None, 0)

    def test_what_is_written_is_found_by_everybody(self, opens: Opens) -> None:
        one, other = opens(), opens()
        written = one.swap(0, A)
        assert written.lease == A
        found = other.read()
        assert (found.lease, found.version) == (A, written.version)
        assert one.read() == found

    def test_only_whoever_knows_what_is_there_changes_it_and_the_others_are_told(self, opens: Opens) -> None:
        one, other = opens(), opens()
        first = one.swap(0, A)
        assert other.swap(0, B).lease == A, "by a look from before there was one"
        second = other.swap(first.version, B)
        assert second.lease == B
        assert one.swap(first.version, replace(A, term=6)).lease == B, "by an old look"
        assert one.read().version == second.version

    def test_of_many_who_swap_the_same_one_wins(self, opens: Opens) -> None:
        stores = [opens() for _ in range(MANY)]
        for _ in range(5):
            version = stores[0].read().version

            def swap(number: int, version: int = version) -> bool:
                own = replace(A, holder=f"t{number}")
                return stores[number].swap(version, own).lease == own

            assert at_once(swap) == 1

    def test_a_version_is_never_used_again(self, opens: Opens) -> None:
        store, version, versions = opens(), 0, set()
        for beat in range(10):
            version = store.swap(version, replace(A, term=5 + beat)).version
            versions.add(version)
        assert len(versions) == 10

    def test_a_new_holders_term_is_above_all_before(self, opens: Opens) -> None:
        store = opens()
        written = store.swap(0, A)
        assert store.read().term_above(0) > A.term
        assert store.read().term_above(100) > 100
        store.swap(written.version, replace(A, released=True))
        assert store.read().term_above(0) > A.term

    def test_a_released_lease_is_vacant_and_is_taken_by_who_knows_that(self, opens: Opens) -> None:
        store = opens()
        released = store.swap(store.swap(0, A).version, replace(A, released=True))
        assert released.lease is not None
        assert released.lease.vacant
        assert opens().swap(released.version, B).lease == B

    def test_closing_leaves_the_lease(self, opens: Opens) -> None:
        store = opens()
        store.swap(0, A)
        store.close()
        assert opens().read().lease == A


class FlexodsContract:
    """Which of several flexods is active. `opens` as for StoreContract."""

    def test_whoever_leaves_hands_over_at_once_and_acts_no_more(self, opens: Opens) -> None:
        store = opens()
        store.swap(0, replace(A, released=True))
        clock = [100.0]
        a, b = (LeaderElector(opens(), name, 30.0, lambda: clock[0]) for name in ("a:1", "b:1"))
        a.step()
        assert a.holds()
        b.step()
        assert not b.holds()
        assert b.active is not None
        assert b.active.address == "a:1"
        released = opens().read()
        a.start()
        a.leave(60.0)
        assert not a.holds()
        assert opens().read().version != released.version
        b.step()
        assert b.holds()
        assert b.epoch > a.epoch

    def test_the_lease_of_one_that_says_nothing_is_taken_after_its_whole_time(self, opens: Opens) -> None:
        clock = [100.0]
        opens().swap(0, replace(A, released=True))
        a, b = (LeaderElector(opens(), name, 5.0, lambda: clock[0]) for name in ("a:1", "b:1"))
        for elector in (a, b):
            elector.step()
        clock[0] = 104.9
        b.step()
        assert not a.holds()
        assert not b.holds()
        clock[0] = 105.0
        b.step()
        assert b.holds()
        a.step()
        assert a.lost
        assert b.epoch > a.epoch


class JobsContract:
    """The lease of a job's leader. `asks`, a fixture: each call is another agent's way to the same lease."""

    def test_the_first_who_asks_holds_the_lease_and_the_others_are_told_who(self, asks: Asks) -> None:
        a, b = asks(), asks()
        assert a.look().vacant
        taken = a.acquire("a", "a:1", LASTING_S)
        assert (taken.holder, taken.address, taken.previous) == ("a", "a:1", 0)
        assert taken.term > 0
        for told in (b.acquire("b", "b:1", LASTING_S), b.look()):
            assert (told.holder, told.address, told.term) == ("a", "a:1", taken.term)
            assert 0 < told.expires_in_s <= LASTING_S

    def test_a_refresh_keeps_the_term(self, asks: Asks) -> None:
        a = asks()
        term = a.acquire("a", "a:1", LASTING_S).term
        for _ in range(3):
            told = a.acquire("a", "a:1", LASTING_S, pb.CLAIM_HOLDER, term)
            assert (told.holder, told.term) == ("a", term)

    def test_a_lease_given_up_is_vacant_at_once_and_only_its_holder_gives_it_up(self, asks: Asks) -> None:
        a, b = asks(), asks()
        term = a.acquire("a", "a:1", LASTING_S).term
        assert b.release("b").holder == "a"
        assert a.release("a").vacant
        assert a.acquire("a", "a:1", LASTING_S, pb.CLAIM_HOLDER, term).vacant, "it has given it up"
        taken = b.acquire("b", "b:1", LASTING_S, seen=term)
        assert taken.holder == "b"
        assert taken.term > term

    def test_a_named_successor_has_the_lease_before_it_comes_and_says_its_address(self, asks: Asks) -> None:
        a, b, c = asks(), asks(), asks()
        term = a.acquire("a", "a:1", LASTING_S).term
        left = a.release("a", "b")
        assert (left.holder, left.address, left.previous) == ("b", "", term)
        assert left.term > term
        told = c.acquire("c", "c:1", LASTING_S)
        assert (told.holder, told.address, told.term) == ("b", "", left.term)
        came = b.acquire("b", "b:1", LASTING_S)
        assert (came.holder, came.address, came.term) == ("b", "b:1", left.term)

    def test_who_led_before_and_wakes_as_the_successor_does_not_hold_the_lease(self, asks: Asks) -> None:
        a, b = asks(), asks()
        term = b.acquire("b", "b:1", LASTING_S).term
        b.release("b", "a")
        a.acquire("a", "a:1", LASTING_S)
        a.release("a", "b")
        woken = b.acquire("b", "b:1", LASTING_S, pb.CLAIM_HOLDER, term)
        assert (woken.holder, woken.address) == ("b", ""), "another one has led since"
        assert b.acquire("b", "b:1", LASTING_S).address == "b:1"

    def test_an_agent_that_was_started_again_has_its_predecessors_lease_with_a_new_term(
        self, asks: Asks
    ) -> None:
        before, after = asks(), asks()
        term = before.acquire("a", "a:1", LASTING_S).term
        again = after.acquire("a", "a:2", LASTING_S)
        assert again.term > term
        assert again.previous == term
        late = before.acquire("a", "a:1", LASTING_S, pb.CLAIM_HOLDER, term)
        assert (late.address, late.term) == ("a:2", again.term)

    def test_a_term_is_above_what_the_taker_has_seen(self, asks: Asks) -> None:
        a = asks()
        assert a.acquire("a", "a:1", LASTING_S, seen=10**15).term == 10**15 + 1
        assert a.release("a", "b").term == 10**15 + 2

    def test_who_claims_to_hold_a_vacant_lease_is_not_given_it(self, asks: Asks) -> None:
        assert asks().acquire("a", "a:1", LASTING_S, pb.CLAIM_HOLDER).vacant

    def test_many_who_ask_at_once_agree_on_one_holder(self, asks: Asks) -> None:
        ways = [asks() for _ in range(MANY)]

        def leads(number: int) -> bool:
            return ways[number].acquire(f"n{number}", f"n{number}:1", LASTING_S).holder == f"n{number}"

        assert at_once(leads) == 1
