"""What a scheduler pushes: what of it is taken, and what becomes of what it demands back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference_world import NOW, SERVERS, loans, server
from says import says

from flexo.loaning.demand import DemandMissing
from flexo.loaning.pushed import (
    KEEP_DONE_S,
    MAX_CALLED_SERVERS,
    MAX_RECLAIM_REQUESTS,
    MAX_SKEW_S,
    BadPush,
    Called,
    Fault,
    PushedDemand,
)

STALE_S = 120.0


def source(*lent: str) -> PushedDemand:
    """A source that has seen six servers, `lent` of them on loan."""
    made = PushedDemand("infer", STALE_S)
    with pytest.raises(DemandMissing):
        made.read(NOW, SERVERS, ())
    made.heed(NOW, loans(*lent))
    return made


def servers_of(pushed: PushedDemand, now: float = NOW) -> float:
    return pushed.read(now, SERVERS, ()).servers


def asked(
    *nodes: str, servers: int = 0, call_id: str = "c1", deadline: float = NOW + 300, **changes
) -> Called:
    said = {"asked_at": NOW, "deadline_at": deadline, "why": "traffic", "nodes": nodes, "servers": servers}
    return Called(call_id=call_id, **{**said, **changes})


def test_the_last_push_is_the_demand():
    pushed = source()
    assert pushed.push(3.5, NOW - 1, "serve", NOW) == NOW - 1 + STALE_S
    pushed.push(4.0, NOW, "serve", NOW)
    demand = pushed.read(NOW + 5, SERVERS, ())
    assert (demand.at, demand.servers, demand.source) == (NOW, 4.0, "pushed by serve")


def test_no_push_and_a_stale_push_are_missing_demand():
    pushed = source()
    with pytest.raises(DemandMissing, match="not pushed"):
        servers_of(pushed)
    pushed.push(3, NOW, "serve", NOW)
    assert servers_of(pushed, NOW + STALE_S) == 3
    with pytest.raises(DemandMissing, match="121 s old"):
        servers_of(pushed, NOW + STALE_S + 1)
    with pytest.raises(DemandMissing, match="clock"):
        servers_of(pushed, NOW - 3600)


@pytest.mark.parametrize(
    ("servers", "at", "words"),
    [
        (-1, NOW, "a number from 0"),
        (math.nan, NOW, "a number from 0"),
        (math.inf, NOW, "a number from 0"),
        (3, 0.0, "since the epoch"),
        (3, math.nan, "since the epoch"),
        (3, NOW - STALE_S - 1, "clock"),
        (3, NOW + MAX_SKEW_S + 1, "clock"),
    ],
)
def test_a_push_that_cannot_be_is_refused_and_the_last_one_stands(servers, at, words):
    pushed = source()
    pushed.push(2, NOW, "serve", NOW)
    with pytest.raises(BadPush, match=words) as refused:
        pushed.push(servers, at, "serve", NOW)
    assert refused.value.fault is Fault.WRONG
    assert servers_of(pushed) == 2


def test_more_than_there_are_says_that_all_are_needed():
    pushed = source()
    pushed.push(8, NOW, "serve", NOW)
    assert servers_of(pushed) == 8


def test_an_older_push_does_not_replace_a_newer_one():
    pushed = source()
    pushed.push(2, NOW, "serve", NOW)
    with pytest.raises(BadPush, match="older") as refused:
        pushed.push(5, NOW - 10, "serve", NOW + 1)
    assert refused.value.fault is Fault.OUTDATED
    assert servers_of(pushed) == 2


def test_a_push_is_taken_again_after_a_clock_was_set_back():
    pushed = source()
    pushed.push(2, NOW, "serve", NOW)
    pushed.push(5, NOW - 3600, "serve", NOW - 3600)
    assert servers_of(pushed, NOW - 3600) == 5


def test_before_the_cluster_was_seen_nothing_can_be_judged():
    fresh = PushedDemand("infer", STALE_S)
    for push in (
        lambda: fresh.push(1, NOW, "x", NOW),
        lambda: fresh.reclaim(asked("i1"), NOW),
        fresh.standing,
    ):
        with pytest.raises(BadPush) as refused:
            push()
        assert refused.value.fault is Fault.TOO_EARLY


def test_servers_called_back_by_name_are_open_until_each_is_back():
    pushed = source("i1", "i2", "i3")
    pushed.reclaim(asked("i1", "i3"), NOW)
    (call,) = pushed.reclaim_requests(NOW)
    assert (call.nodes, call.servers, call.deadline_at) == (("i1", "i3"), 0, NOW + 300)
    pushed.heed(NOW + 20, loans("i2", "i3"))
    (call,) = pushed.reclaim_requests(NOW + 20)
    assert call.nodes == ("i3",)
    pushed.heed(NOW + 30, loans("i2"))
    assert pushed.reclaim_requests(NOW + 30) == ()
    (told,) = pushed.standing().called
    assert [(each.node, each.at) for each in told.empty] == [("i1", NOW + 20), ("i3", NOW + 30)]
    assert told.done_at == NOW + 30


def test_servers_called_back_by_number_are_counted_as_they_come():
    pushed = source("i1", "i2", "i3")
    pushed.reclaim(asked(servers=2), NOW)
    assert pushed.reclaim_requests(NOW)[0].servers == 2
    pushed.heed(NOW + 10, loans("i1", "i2"))
    assert pushed.reclaim_requests(NOW + 10)[0].servers == 1
    pushed.heed(NOW + 20, loans("i2"))
    assert pushed.reclaim_requests(NOW + 20) == ()


def test_the_most_urgent_number_has_the_next_server_and_names_come_first():
    pushed = source("i1", "i2", "i3")
    pushed.reclaim(asked(servers=1, call_id="later", deadline=NOW + 500), NOW)
    pushed.reclaim(asked(servers=1, call_id="soon", deadline=NOW + 100), NOW)
    pushed.reclaim(asked("i3", call_id="named", deadline=NOW + 900), NOW)
    assert [call.call_id for call in pushed.reclaim_requests(NOW)] == ["soon", "later", "named"]
    pushed.heed(NOW + 1, loans("i1", "i2"))
    assert [call.call_id for call in pushed.reclaim_requests(NOW)] == ["soon", "later"]
    pushed.heed(NOW + 2, loans("i1"))
    assert [call.call_id for call in pushed.reclaim_requests(NOW)] == ["later"]


def test_what_is_not_lent_is_there_already():
    pushed = source("i1")
    taken = pushed.reclaim(asked("i1", "i2"), NOW)
    assert [each.node for each in taken.empty] == ["i2"]
    assert pushed.reclaim_requests(NOW)[0].nodes == ("i1",)
    assert pushed.reclaim(asked("i4", call_id="home"), NOW).done_at == NOW


def test_a_number_is_cut_to_what_is_lent_and_not_promised():
    pushed = source("i1", "i2", "i3")
    assert pushed.reclaim(asked(servers=2, call_id="a"), NOW).servers == 2
    assert pushed.reclaim(asked(servers=6, call_id="b"), NOW).servers == 1
    assert pushed.reclaim(asked(servers=1, call_id="c"), NOW).done_at is not None


def test_saying_it_twice_is_saying_it_once():
    pushed = source("i1", "i2")
    first = pushed.reclaim(asked(servers=5), NOW)
    assert pushed.reclaim(asked(servers=5, why="still"), NOW + 1) == first
    with pytest.raises(BadPush, match="stands with other words") as refused:
        pushed.reclaim(asked(servers=5, deadline=NOW + 400), NOW + 1)
    assert refused.value.fault is Fault.OUTDATED
    assert len(pushed.reclaim_requests(NOW)) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (asked("i1", "t9"), "no server t9"),
        (asked("i1", "i1"), "twice"),
        (asked(), "one of the two"),
        (asked("i1", servers=1), "one of the two"),
        (asked(servers=7), "1 to 6"),
        (asked("i1", deadline=NOW - 1), "-1.0 s from now"),
        (asked("i1", deadline=NOW + 8 * 86_400), "7 days"),
        (asked("i1", deadline=math.nan), "nan"),
        (asked("i1", asked_at=NOW - MAX_SKEW_S - 1), "clock"),
        (asked("i1", asked_at=NOW + MAX_SKEW_S + 1), "clock"),
        (asked("i1", call_id=""), "names no call back"),
        (asked("i1", call_id="x" * 65), "names no call back"),
        (asked("i1", call_id="a\nb"), "names no call back"),
    ],
)
def test_a_call_back_that_cannot_be_is_refused_and_changes_nothing(call, words):
    pushed = source("i1", "i2")
    pushed.reclaim(asked("i2", call_id="before"), NOW)
    before = pushed.standing()
    with pytest.raises(BadPush, match=words):
        pushed.reclaim(call, NOW)
    assert pushed.standing() == before


def test_a_call_back_can_be_withdrawn_once():
    pushed = source("i1")
    pushed.reclaim(asked("i1"), NOW)
    pushed.withdraw("c1")
    assert pushed.reclaim_requests(NOW) == ()
    with pytest.raises(BadPush, match="no call back 'c1'"):
        pushed.withdraw("c1")


def test_what_is_done_is_told_for_an_hour():
    pushed = source("i1")
    pushed.reclaim(asked("i1"), NOW)
    pushed.heed(NOW + 10, ())
    pushed.heed(NOW + KEEP_DONE_S, ())
    assert pushed.standing().called
    pushed.heed(NOW + 10 + KEEP_DONE_S, ())
    assert not pushed.standing().called


def test_what_is_done_makes_room_and_what_is_open_does_not():
    pushed = source("i1")
    for number in range(MAX_RECLAIM_REQUESTS):
        pushed.reclaim(asked("i2", call_id=f"done{number}"), NOW)
    for number in range(MAX_RECLAIM_REQUESTS):
        pushed.reclaim(asked("i1", call_id=f"open{number}"), NOW)
    with pytest.raises(BadPush) as refused:
        pushed.reclaim(asked("i1"), NOW)
    assert refused.value.fault is Fault.TOO_MANY
    assert says(str(refused.value), 100, "100 servers", 1)
    assert says(str(refused.value), 100, "10000 servers")
    assert len(pushed.reclaim_requests(NOW)) == MAX_RECLAIM_REQUESTS


@pytest.mark.thorough
def test_servers_in_call_backs_are_bounded_and_those_that_came_back_make_room():
    names = [f"s{number}" for number in range(MAX_CALLED_SERVERS)]
    pushed = PushedDemand("infer", STALE_S)
    with pytest.raises(DemandMissing):
        pushed.read(NOW, [server(name) for name in names], ())
    pushed.heed(NOW, loans(*names))
    half = MAX_CALLED_SERVERS // 2
    pushed.reclaim(asked(*names[:half], call_id="first"), NOW)
    pushed.reclaim(asked(servers=half, call_id="second"), NOW)
    with pytest.raises(BadPush, match=r"for 10000 servers\b.*\bfor 1\b"):
        pushed.reclaim(asked(names[0], call_id="third"), NOW)
    pushed.heed(NOW + 1, loans(*names[half:]))
    pushed.reclaim(asked(names[-1], call_id="third"), NOW)
    assert {called.call_id for called in pushed.standing().called} == {"second", "third"}


def test_listeners_hear_of_changes_until_they_go():
    pushed, heard = source("i1"), []
    with pushed.listening(lambda: heard.append(1)):
        pushed.heed(NOW + 1, loans("i1"))
        assert not heard
        pushed.heed(NOW + 2, ())
        pushed.reclaim(asked("i1"), NOW)
        pushed.withdraw("c1")
        assert len(heard) == 3
    pushed.heed(NOW + 3, loans("i1"))
    assert len(heard) == 3


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sets(st.integers(1, 6), max_size=3), st.integers(0, 6)),
        st.tuples(st.just("lent"), st.sets(st.integers(1, 6)), st.just(0)),
    ),
    max_size=12,
)


@given(STEPS)
def test_whatever_happens_no_more_is_missing_than_is_lent(steps):
    pushed, now = source("i1", "i2", "i3", "i4"), NOW
    lent = {"i1", "i2", "i3", "i4"}
    for number, (kind, some, servers) in enumerate(steps):
        names = tuple(sorted(f"i{each}" for each in some))
        now += 1
        if kind == "lent":
            lent &= set(names)  # while something is called back, nothing new is lent
            pushed.heed(now, loans(*sorted(lent)))
            continue
        try:
            pushed.reclaim(asked(*names, servers=0 if names else servers, call_id=f"c{number}"), NOW)
        except BadPush:
            continue
    open_ones = pushed.reclaim_requests(now)
    assert all(set(call.nodes) <= lent for call in open_ones)
    assert sum(call.servers for call in open_ones) <= len(lent)
    pushed.heed(now + 1, ())
    assert pushed.reclaim_requests(now + 1) == ()
