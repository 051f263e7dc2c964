"""What policies say of the order in which pending jobs of a cluster are to start."""

from __future__ import annotations

import pytest
from training_jobs import NOW, job, node, pending_order, snapshot

from flexo.model.plans import Snapshot
from flexo.policies import registry


def seen(*jobs) -> Snapshot:
    """A cluster with room for all of them, which nobody may start with."""
    return snapshot([node("n1", 64), node("n2", 64)], jobs)


@pytest.mark.parametrize("name", registry.built_in("orders_pending"))
def test_a_policy_with_an_order_puts_every_pending_job_in_it_whatever_it_asks_for(name):
    jobs = [job(1, 2), job(2, "2-8"), job(3, 500), job(4, 1, remaining_work=60.0), job(5, 1, on={"n1": 1})]
    assert sorted(pending_order(registry.make(name), seen(*jobs))) == [1, 2, 3, 4]


OTHERS = [name for name in registry.built_in() if name not in registry.built_in("orders_pending")]


@pytest.mark.parametrize("name", OTHERS)
def test_a_policy_that_is_not_said_to_have_an_order_has_none(name):
    jobs = seen(job(1, 2, remaining_work=9e9), job(2, 1, remaining_work=60.0))
    assert pending_order(registry.make(name), jobs) == []


def test_lyra_puts_the_shortest_first_and_those_of_which_nothing_is_known_last():
    jobs = [job(1, 2, remaining_work=7_200.0), job(2, 1), job(3, "2-4", remaining_work=600.0)]
    assert pending_order(registry.make("lyra"), seen(*jobs)) == [3, 1, 2]


def test_lyra_puts_a_job_first_that_has_waited_far_too_long():
    late = job(1, 2, remaining_work=7_200.0, waiting_since=NOW - 200_000.0)
    assert pending_order(registry.make("lyra"), seen(late, job(2, 1, remaining_work=60.0))) == [1, 2]


def test_jobs_that_run_are_in_no_order():
    assert pending_order(registry.make("lyra"), seen(job(1, 1, on={"n1": 1}))) == []
