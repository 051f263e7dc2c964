"""Which servers are vacated: the published example, and the properties that every choice has."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo.loaning.reclaim import (
    BaseOn,
    Chooser,
    Server,
    emptied_by,
    exact,
    heuristic,
    preempted_by,
    random_choice,
    smallest_jobs_first,
)


def server(name: str, *jobs: str, satellites: int = 0) -> Server:
    return Server(name, tuple(BaseOn(job) for job in jobs), satellites)


PUBLISHED = (
    server("1", "a"),
    server("2", "a"),
    server("3", "b"),
    server("4", "c", "d"),
    server("5", "c", "d"),
)
"""Lyra's slides: servers of values 0.5, 0.5, 1, 1, 1."""


@pytest.mark.parametrize(("chosen", "preempted"), [({"1", "2"}, 1), ({"2", "3"}, 2), ({"4", "5"}, 2)])
def test_the_published_choices_of_two_servers_preempt_so_many_jobs(chosen, preempted):
    assert len(preempted_by(PUBLISHED, chosen)) == preempted


def test_the_heuristic_takes_server_1_and_then_server_2_which_came_free_with_it():
    assert heuristic(PUBLISHED, 1) == ("1",)
    assert emptied_by(PUBLISHED, ("1",)) == ("2",)
    assert heuristic(PUBLISHED, 2) == ("1", "2")
    assert preempted_by(PUBLISHED, heuristic(PUBLISHED, 2)) == {"a"}


def test_a_server_that_came_free_is_taken_before_any_that_costs_something():
    servers = (server("1", "a", "b"), server("2", "a"), server("3", "a", "b"), server("4", "c"))
    assert preempted_by(servers, heuristic(servers, 3)) == {"a", "b"}


def test_servers_without_a_base_go_first_those_with_the_fewest_workers_before_others():
    servers = (
        server("busy", "a"),
        server("three", satellites=3),
        server("none"),
        server("one", satellites=1),
    )
    assert heuristic(servers, 3) == ("none", "one", "three")
    assert preempted_by(servers, heuristic(servers, 3)) == frozenset()


def test_the_exact_choice_sees_what_the_greedy_one_does_not():
    """Three servers of two big jobs cost 2 in all, and each alone two thirds."""
    servers = (
        server("1", "x", "y"),
        server("2", "x", "z"),
        server("3", "y", "z"),
        *(server(f"big{index}", "p", "q") for index in range(3)),
    )
    assert len(preempted_by(servers, exact(servers, 3))) == 2
    assert exact(servers, 3) == ("big0", "big1", "big2")


def test_the_exact_choice_scales_in_as_few_workers_as_possible_beside_that():
    servers = (server("1", "a", satellites=4), server("2", "b", satellites=1), server("3", "c", satellites=2))
    assert exact(servers, 1) == ("2",)


def test_the_smallest_jobs_are_those_with_the_fewest_gpus_wherever_they_are():
    servers = (
        Server("1", (BaseOn("wide", 16),)),
        Server("2", (BaseOn("small", 2), BaseOn("tiny", 1))),
        Server("3", (BaseOn("middle", 8),)),
    )
    assert smallest_jobs_first(servers, 2) == ("2", "3")


def test_a_random_choice_is_the_same_for_the_same_seed():
    assert random_choice(7)(PUBLISHED, 3) == random_choice(7)(PUBLISHED, 3)
    assert {random_choice(seed)(PUBLISHED, 1) for seed in range(50)} == {(s.name,) for s in PUBLISHED}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Server, ...]:
    """A few servers, each with bases of a few jobs, as random placements leave them."""
    hosts = draw(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=3, unique=True), max_size=7))
    sizes = {job: draw(st.integers(1, 16)) for job in "abcdefg"}
    return tuple(
        Server(f"i{index}", tuple(BaseOn(job, sizes[job]) for job in jobs), draw(st.integers(0, 4)))
        for index, jobs in enumerate(hosts)
    )


def fewest(servers: tuple[Server, ...], wanted: int) -> int:
    names = [each.name for each in servers]
    return min(len(preempted_by(servers, some)) for some in combinations(names, min(wanted, len(names))))


@pytest.mark.parametrize("choose", [heuristic, exact, smallest_jobs_first, random_choice(1)])
@settings(max_examples=examples(60), deadline=None)
@given(servers=clusters(), wanted=st.integers(0, 9))
def test_every_choice_vacates_what_was_asked_where_there_is_so_much(choose: Chooser, servers, wanted):
    chosen = choose(servers, wanted)
    assert len(chosen) == len(set(chosen)) == min(wanted, len(servers))
    assert set(chosen) <= {each.name for each in servers}


@settings(max_examples=examples(150), deadline=None)
@given(servers=clusters(), wanted=st.integers(0, 7))
def test_the_exact_choice_preempts_as_few_as_trying_all_and_the_heuristic_no_fewer(servers, wanted):
    least = fewest(servers, wanted)
    assert len(preempted_by(servers, exact(servers, wanted))) == least
    assert len(preempted_by(servers, heuristic(servers, wanted))) >= least


@settings(max_examples=examples(100), deadline=None)
@given(servers=clusters(), wanted=st.integers(1, 7))
def test_no_base_is_preempted_while_scaling_in_is_enough(servers, wanted):
    free = sum(not each.bases for each in servers)
    if free >= wanted:
        assert not preempted_by(servers, heuristic(servers, wanted))


@settings(max_examples=examples(60), deadline=None)
@given(servers=clusters(), wanted=st.integers(1, 7))
def test_the_order_in_which_servers_are_named_does_not_matter(servers, wanted):
    assert set(heuristic(servers, wanted)) == set(heuristic(servers[::-1], wanted))
