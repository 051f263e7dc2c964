"""Nodes and partitions out of what real clusters printed."""

from __future__ import annotations

import re

import pytest
from captured_outputs import RELEASES, captured
from flat_records import make_node
from says import says

from flexo.clusters.slurm.parse_config import parse_traits
from flexo.clusters.slurm.parse_nodes import parse_nodes, parse_partitions
from flexo.clusters.slurm.text import BadValue
from flexo.model.nodes import Node, Partition
from flexo_protos.resources import Resources


def nodes_of(release: str) -> dict[str, Node]:
    return {node.name: node for node in parse_nodes(captured(release, "nodes"))}


def node_in_state(state: str) -> Node:
    """A node of a real cluster, its state replaced."""
    (line,) = (line for line in captured("22.05", "nodes").splitlines() if line.startswith("NodeName=t2 "))
    (node,) = parse_nodes(re.sub(r"State=\S+", f"State={state}", line))
    return node


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_in_use_is_read_with_all_its_resources(release: str) -> None:
    assert nodes_of(release)["t2"] == make_node(
        name="t2",
        gpus=4,
        gpus_allocated=4,
        cpus=8,
        cpus_allocated=2,
        memory_mib=4000,
        memory_allocated_mib=500,
        partitions=frozenset({"train", "flex"}),
        gpu_type="v100",
        features=frozenset({"v100", "nvlink"}),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_with_gpus_of_two_types_has_no_type(release: str) -> None:
    node = nodes_of(release)["u1"]
    assert (node.gpus, node.gpu_type) == (4, "")
    assert node.capacity.holds(Resources(gpus=1, cpus=1, gpu_type="v100")) == 0


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_without_gpus_has_none(release: str) -> None:
    assert nodes_of(release)["c1"].gpus == 0


@pytest.mark.parametrize("release", RELEASES)
def test_a_drained_node_is_unusable_and_says_why_whatever_its_reason_holds(release: str) -> None:
    assert nodes_of(release)["i1"].unusable.startswith("IDLE+DRAIN: two")
    assert nodes_of(release)["i1"].gpus_idle == 0


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_that_one_user_has_for_himself_is_unusable(release: str) -> None:
    assert nodes_of(release)["c1"].unusable == "exclusive to user root"


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED", "IDLE+CLOUD", "MIXED+CLOUD", "IDLE+DYNAMIC_NORM"]
)
def test_a_node_on_which_slurm_starts_jobs_is_usable(state: str) -> None:
    assert node_in_state(state).unusable == ""


@pytest.mark.parametrize(
    "state",
    [
        *(
            "DOWN",
            "DOWN*",
            "IDLE*",
            "IDLE+NOT_RESPONDING",
            "DOWN+NOT_RESPONDING",
            "UNKNOWN",
            "FUTURE",
            "ERROR",
        ),
        *("IDLE+DRAIN", "MIXED+DRAIN", "ALLOCATED+DRAIN", "IDLE+COMPLETING+DRAIN", "IDLE+FAIL"),
        *("IDLE+PLANNED", "MIXED+PLANNED", "IDLE+COMPLETING", "MIXED+COMPLETING"),
        *("IDLE+RESERVED", "IDLE+MAINTENANCE", "MIXED+MAINTENANCE", "IDLE+BLOCKED", "IDLE+INVALID_REG"),
        *("IDLE+CLOUD+POWERED_DOWN", "IDLE+POWERING_DOWN", "MIXED+CLOUD+POWERING_UP", "IDLE+POWER_DOWN"),
        *("IDLE+REBOOT_REQUESTED", "IDLE+REBOOT_ISSUED", "IDLE+A_FLAG_OF_TOMORROW"),
    ],
)
def test_a_node_on_which_slurm_starts_nothing_is_unusable_and_names_its_state(state: str) -> None:
    node = node_in_state(state)
    assert node.unusable == state.replace("+CLOUD", "")
    assert node.gpus_idle == 0


def test_cpus_and_memory_that_the_node_keeps_for_itself_are_not_counted() -> None:
    line = captured("22.05", "nodes").splitlines()[1]
    (node,) = parse_nodes(line.replace("CPUEfctv=8", "CPUEfctv=6") + " MemSpecLimit=500")
    assert (node.capacity.cpus, node.capacity.memory_mib) == (6, 3500)


def test_a_node_whose_gpus_are_in_use_in_pieces_is_unusable() -> None:
    line = captured("22.05", "nodes").replace(
        "GresUsed=gpu:v100:4(IDX:0-3)", "GresUsed=gpu:v100:0,shard:2(1/4)"
    )
    assert says({node.name: node for node in parse_nodes(line)}["t2"].unusable, "GPUs", "in pieces")


def test_a_reason_cannot_forge_another_field() -> None:
    line = captured("22.05", "nodes").splitlines()[1]
    (node,) = parse_nodes(line + " Comment=Partitions=flex State=IDLE GresUsed=gpu:9")
    assert (node.partitions, node.allocated.gpus) == (frozenset({"infer"}), 0)
    assert node.unusable == "IDLE+DRAIN: two"


def test_a_node_without_its_state_is_refused_by_name() -> None:
    with pytest.raises(BadValue, match=r"'State'.*NodeName=c1"):
        parse_nodes(captured("22.05", "nodes").replace(" State=", " Status="))


@pytest.mark.parametrize("release", RELEASES)
def test_partitions_are_read_also_an_empty_one(release: str) -> None:
    partitions = {
        partition.name: partition for partition in parse_partitions(captured(release, "partitions"))
    }
    assert partitions["train"] == Partition("train", 10, frozenset({"c1", "t1", "t2", "t3", "u1"}))
    assert partitions["flex"].priority_tier == 1
    assert partitions["borrowed"] == Partition("borrowed", 1, frozenset())


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_partition_that_starts_nothing_new_is_not_up(state: str) -> None:
    text = captured("22.05", "partitions").replace("State=UP", f"State={state}")
    assert not any(partition.up for partition in parse_partitions(text))


def test_a_turn_of_backfill_is_its_interval_and_its_slowest_cycle() -> None:
    traits = parse_traits(captured("22.05", "config"), captured("22.05", "sdiag"))
    assert (traits.name, traits.version) == ("green", "22.05.8")
    assert traits.starts.turn_s == pytest.approx(3.002259)


@pytest.mark.parametrize(
    ("setting", "starts"),
    [("bf_max_job_part=50", 50), ("bf_max_job_part=0", None), ("bf_max_job_partition=7", None)],
)
def test_of_a_partition_as_many_satellites_start_in_a_turn_as_backfill_looks_at(
    setting: str, starts: int | None
) -> None:
    config = captured("22.05", "config").replace("bf_interval=3", f"bf_interval=3,{setting},bf_continue")
    assert parse_traits(config, "").starts.per_turn == starts
    assert parse_traits(captured("22.05", "config"), "").starts.per_turn is None


def test_without_a_setting_backfill_runs_every_thirty_seconds() -> None:
    config = captured("22.05", "config").replace("sched_interval=2,bf_interval=3", "(null)")
    assert parse_traits(config, "").starts.turn_s == 30.0
