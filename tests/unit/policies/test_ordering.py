"""What policies say of the order in which pending jobs on Slurm are to start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_clusters import pending
from training_jobs import NOW, job, node, snapshot

from flexo.model import Snapshot
from flexo.policies import registry
from flexo.policies.ordering import order_of


def seen(*jobs, **changes) -> Snapshot:
    """A cluster with room for all of them, which nobody may start with."""
    queue = tuple(pending(each.key.job_id) for each in jobs)
    return replace(snapshot([node("n1", 64), node("n2", 64)], jobs), jobs=queue, **changes)


@pytest.mark.parametrize("name", registry.ordering())
def test_a_policy_with_an_order_puts_every_pending_job_in_it_whatever_it_asks_for(name):
    jobs = [job(1, 2), job(2, "2-8"), job(3, 500), job(4, 1, remaining_work=60.0), job(5, 1, on={"n1": 1})]
    order = order_of(registry.make(name), seen(*jobs))
    assert sorted(key.job_id for key in order) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in registry.ordering()])
def test_a_policy_that_is_not_said_to_have_an_order_has_none_but_that_of_submission(name):
    order = order_of(registry.make(name), seen(job(1, 2, remaining_work=9e9), job(2, 1, remaining_work=60.0)))
    assert [key.job_id for key in order] in ([], [1, 2])


def test_lyra_puts_the_shortest_first_and_those_of_which_nothing_is_known_last():
    jobs = [job(1, 2, remaining_work=7_200.0), job(2, 1), job(3, "2-4", remaining_work=600.0)]
    assert [key.job_id for key in order_of(registry.make("lyra"), seen(*jobs))] == [3, 1, 2]


def test_lyra_puts_a_job_first_that_has_waited_far_too_long():
    late = job(1, 2, remaining_work=7_200.0, waiting_since=NOW - 200_000.0)
    order = order_of(registry.make("lyra"), seen(late, job(2, 1, remaining_work=60.0)))
    assert [key.job_id for key in order] == [1, 2]


def test_nobody_is_asked_when_nobody_waits():
    assert order_of(registry.make("lyra"), seen(job(1, 1, on={"n1": 1}))) == ()
