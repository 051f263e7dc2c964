"""Which servers on loan satellites may use, and where they are submitted there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flat_records import change_node
from says import says
from small_clusters import NOW, elastic, granted, grown, node, pending, sentence, shrunk, snapshot

from flexo.model.elastic import ElasticJob
from flexo.model.loans import Loan, LoanState
from flexo.model.nodes import Partition
from flexo.model.plans import Grow, Plan, Snapshot
from flexo.model.queue import QueuedJob
from flexo.policies.greedy import Greedy
from flexo.policies.node_capacity import lent_nodes, satellite_partition
from flexo.policies.satellites import plan
from flexo_protos.resources import Resources

LENT = (Loan("i1", 0.0, "spare"), Loan("i2", 0.0, "spare"))


def lending(
    jobs: list[ElasticJob],
    loans: tuple[Loan, ...] = LENT,
    waiting: list[QueuedJob] | None = None,
    **types: str,
) -> Snapshot:
    """A full training node t1, and two inference servers in the borrowed partition."""
    kinds = {"t1": "", "i1": "", "i2": ""} | types
    nodes = [
        node("t1", used=4, gpu_type=kinds["t1"]),
        node("i1", gpu_type=kinds["i1"], partitions=frozenset({"infer", "borrowed"})),
        node("i2", gpu_type=kinds["i2"], partitions=frozenset({"infer", "borrowed"})),
    ]
    servers = frozenset({"i1", "i2"})
    return replace(
        snapshot(nodes, jobs, waiting),
        partitions=(
            Partition("infer", 20, servers),
            Partition("train", 10, frozenset({"t1"})),
            Partition("borrowed", 1, servers),
            Partition("flex", 1, frozenset({"t1"})),
        ),
        loans=loans,
        borrowed_partition="borrowed",
    )


def planned(seen: Snapshot) -> Plan:
    return plan(Greedy(), seen, 0.0)


def back(name: str, state: LoanState = LoanState.RECLAIMING) -> Loan:
    return Loan(name, 0.0, "spare", state, NOW, NOW + 100, "demand")


def test_a_job_grows_onto_servers_on_loan_by_the_borrowed_partition():
    found = planned(lending([elastic(1, "4-12")]))
    assert grown(found) == [(1, "i1", 4), (1, "i2", 4)]
    assert {grow.partition for grow in found.actions if isinstance(grow, Grow)} == {"borrowed"}


@pytest.mark.parametrize("state", [LoanState.RECLAIMING, LoanState.PREEMPTING, LoanState.ESCALATED])
def test_nothing_is_put_on_a_server_that_is_on_its_way_back(state):
    seen = lending([elastic(1, "4-12")], (LENT[0], back("i2", state)))
    assert grown(planned(seen)) == [(1, "i1", 4)]


def test_a_server_in_the_partition_without_a_loan_is_left_alone():
    assert grown(planned(lending([elastic(1, "4-12")], (LENT[1],)))) == [(1, "i2", 4)]


def test_a_loan_that_the_partition_does_not_know_yet_is_of_no_use():
    seen = lending([elastic(1, "4-12")])
    partitions = [
        replace(part, nodes=frozenset()) if part.name == "borrowed" else part for part in seen.partitions
    ]
    assert grown(planned(replace(seen, partitions=tuple(partitions)))) == []


def test_satellites_go_to_servers_of_the_type_that_the_job_runs_on():
    seen = lending([elastic(1, "4-12")], t1="V100", i1="T4", i2="V100")
    found = planned(seen)
    assert grown(found) == [(1, "i2", 4)]


def test_a_job_that_may_only_grow_onto_another_type_is_told_so():
    found = planned(lending([elastic(1, "4-12")], t1="V100", i1="T4", i2="T4"))
    assert grown(found) == []
    assert says(sentence(found, 1), "i1", "on loan", "T4")


def test_a_heterogeneous_job_gets_servers_of_any_type_in_the_same_run():
    job = replace(elastic(1, "4-12"), heterogeneous=True)
    found = planned(lending([job], t1="V100", i1="T4", i2="V100"))
    assert sorted(grown(found)) == [(1, "i1", 4), (1, "i2", 4)]


def test_a_base_on_a_server_on_loan_gets_no_other_type_of_the_training_cluster_unless_heterogeneous():
    job = elastic(1, "2-8", base="i1")
    seen = lending([job], LENT[:1], t1="V100", i1="T4", i2="V100")
    idle_and_full = [
        node("t1", gpu_type="V100"),
        change_node(seen.nodes[1], gpus_allocated=4, cpus_allocated=4),
    ]
    seen = replace(seen, nodes=tuple(idle_and_full))
    assert grown(planned(seen)) == []
    assert says(sentence(planned(seen), 1), "t1", "V100", "another type")
    mixed = replace(seen, elastic=(replace(job, heterogeneous=True),))
    assert grown(planned(mixed)) == [(1, "t1", 4)]


def test_of_a_job_without_gpus_no_type_matters():
    without = elastic(1, "4-5", shape=Resources(gpus=0, cpus=1))
    seen = lending([without], t1="V100", i1="T4", i2="V100")
    full = replace(
        seen, nodes=tuple(change_node(each, cpus_allocated=each.capacity.cpus) for each in seen.nodes[:1])
    )
    assert grown(planned(replace(full, nodes=(*full.nodes, seen.nodes[1])))) == [(1, "i1", 1)]


def test_a_job_that_names_a_type_gets_no_other():
    job = elastic(1, "4-12", shape=Resources(1, 1, gpu_type="T4"))
    assert grown(planned(lending([job], t1="T4", i1="T4", i2="V100"))) == [(1, "i1", 4)]


def test_a_base_on_a_server_on_loan_grows_on_others_of_its_type():
    seen = lending([elastic(1, "2-8", base="i1")], t1="V100", i1="T4", i2="T4")
    assert (1, "i2", 4) in grown(planned(seen))


def test_what_is_coming_back_serves_the_inference_job_that_waits_for_it():
    """The satellite on i2 is on its way out: for the inference job nobody else has to go."""
    job = granted(granted(elastic(1, "4-12"), "i1", 4), "i2", 4, "leaving")
    waiting = pending(90, 4, partitions=("infer",))
    seen = lending([job], (LENT[0], back("i2")), [waiting])
    used = [change_node(each, gpus_allocated=4, cpus_allocated=4) for each in seen.nodes]
    assert shrunk(planned(replace(seen, nodes=tuple(used)))) == []


def test_without_loans_nothing_is_different():
    seen = replace(lending([elastic(1, "4-12")]), loans=(), borrowed_partition="")
    assert lent_nodes(seen) == frozenset()
    assert satellite_partition(seen, "i1") == "flex"
    assert grown(planned(seen)) == []
