"""Who gives the state to whom, decided from what all members say of themselves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.worker.state_route import Member, Origin, Route, decide


def stays(commits: int = 7, node: int = 0) -> Member:
    return Member(Origin.STAYS, commits, node, can_hand_over=True)


def new(node: int = 0) -> Member:
    return Member(Origin.NEW, 0, node, can_hand_over=True)


def back(commits: int = 7) -> Member:
    return Member(Origin.BACK, commits, 0, can_hand_over=True)


members_of_any_kind = st.lists(
    st.builds(
        Member,
        st.sampled_from(Origin),
        st.sampled_from([0, 7, 7, 7, 8]),
        st.integers(0, 3),
        st.sampled_from([True, True, True, True, False]),
    ),
    min_size=1,
    max_size=9,
)
changes_of_plan = st.builds(
    lambda first, others: [stays(node=first), *others],
    st.integers(0, 3),
    st.lists(st.builds(lambda made, node: made(node=node), st.sampled_from([stays, new]), st.integers(0, 3))),
)


@given(members_of_any_kind | changes_of_plan)
def test_whoever_is_given_the_state_lacks_it_and_whoever_gives_it_has_it(members: list[Member]) -> None:
    route = decide(members)
    assert route.commits == members[0].commits
    for newcomer, giver in route.givers.items():
        assert members[newcomer].origin is Origin.NEW
        assert members[giver].origin is Origin.STAYS
        assert members[giver].commits == route.commits
    if route.givers:
        lacking = {rank for rank, member in enumerate(members) if member.origin is not Origin.STAYS}
        assert set(route.givers) == lacking
        assert all(member.can_hand_over for member in members)


@given(changes_of_plan)
def test_those_who_stay_take_turns_and_none_sends_more_often_than_a_broadcasts_root(
    members: list[Member],
) -> None:
    route = decide(members)
    givers = [rank for rank, member in enumerate(members) if member.origin is Origin.STAYS]
    newcomers = len(members) - len(givers)
    rounds = (len(members) - 1).bit_length()
    assert bool(route.givers) == (0 < newcomers <= rounds * len(givers))
    if route.givers:
        sent = Counter(dict.fromkeys(givers, 0))
        sent.update(route.givers.values())
        assert max(sent.values()) - min(sent.values()) <= 1


@given(changes_of_plan)
def test_receivers_are_those_who_expect_it_from_that_giver(members: list[Member]) -> None:
    route = decide(members)
    pairs = [(each, giver) for giver in range(len(members)) for each in route.receivers(giver)]
    assert Counter(pairs) == Counter(route.givers.items())


def test_those_without_a_newcomer_train_on() -> None:
    route = decide([stays(), stays(), stays(), new()])
    assert route == Route(7, {3: 0})
    assert [route.receivers(rank) for rank in range(4)] == [(3,), (), (), ()]


def test_a_newcomer_is_given_it_on_its_own_node_where_that_is_as_even() -> None:
    on_two_nodes = [stays(node=0), stays(node=2), new(node=4), new(node=2)]
    assert decide(on_two_nodes).givers == {3: 1, 2: 0}


def test_even_turns_count_more_than_the_node() -> None:
    assert set(decide([stays(node=0), stays(node=2), new(node=2), new(node=2)]).givers.values()) == {0, 1}


def test_many_newcomers_of_one_have_it_sooner_by_broadcast() -> None:
    assert decide([stays(), new(), new()]).givers == {1: 0, 2: 0}
    assert decide([stays(), new(), new(), new()]).givers == {}


def test_founders_take_over_rank_0s() -> None:
    assert decide([new(), new()]) == Route(0)


def test_after_a_break_all_take_over_rank_0s() -> None:
    assert decide([back(8), back(7), new()]) == Route(8)
    assert decide([stays(), back(), new()]) == Route(7)


def test_where_those_who_stay_have_not_committed_the_same_all_take_over_rank_0s() -> None:
    assert decide([stays(8), stays(7), new()]) == Route(8)


def test_without_a_newcomer_all_take_over_rank_0s() -> None:
    assert decide([stays(), stays()]) == Route(7)


def test_where_rank_0_is_new_all_take_over_its_state() -> None:
    assert decide([new(), stays()]) == Route(0)


def test_where_any_worker_can_be_the_root_it_is_the_one_with_the_most_commits() -> None:
    assert decide([back(7), back(8), new()], any_root=True) == Route(8, root=1)
    assert decide([new(), back(7), back(7)], any_root=True) == Route(7, root=1)


def test_then_a_newcomer_of_rank_0_is_given_the_state_by_one_that_stays() -> None:
    assert decide([new(), stays(), stays()], any_root=True).givers == {0: 1}


def test_one_that_cannot_hand_over_makes_all_take_over_rank_0s() -> None:
    unable = Member(Origin.STAYS, 7, 0, can_hand_over=False)
    assert decide([stays(), unable, new()]) == Route(7)


def test_spread_nobody_who_has_the_state_receives_it_however_many_are_new() -> None:
    members = [stays(), *(new() for _ in range(7))]
    assert decide(members, any_root=True).givers == {}
    assert decide(members, any_root=True, spread=True).givers == dict.fromkeys(range(1, 8), 0)


def test_a_last_commit_that_may_be_wrong_is_kept_only_if_all_have_made_it() -> None:
    def decided(*members: Member) -> Route:
        return decide(members, may_be_wrong=True)

    assert decided(back(8), new(), back(7), back(7)) == Route(7, root=2)
    assert decided(back(8), back(8), new()) == Route(8)
    assert decided(back(8), back(5)) == Route(8), "it comes from an older generation"
    assert decided(stays(8), stays(8), back(7)) == Route(7, root=2)
    assert decided(new(), new()) == Route(0)
