"""GPUs that Slurm can open for a second job, as two releases print them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from captured_outputs import captured, sharing_jobs_of
from flexo.clusters.slurm.spare_gpus import index_of, with_spare_gpus

from flexo.clusters.slurm.parse_nodes import parse_nodes
from flexo.model.nodes import Node, SpareGpu
from flexo.model.queue import JobState, QueuedJob, WaitReason
from flexo.model.ranges import Range
from flexo_protos.resources import Devices, Resources

RELEASES = ("24.11", "26.05")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def node(release: str) -> Node:
    (found,) = parse_nodes(captured(release, "spare_nodes"))
    return found


@pytest.fixture
def jobs(release: str) -> list[QueuedJob]:
    return sharing_jobs_of(release)


def shareable(node: Node, jobs: list[QueuedJob], gres: str = "spare") -> tuple[SpareGpu, ...]:
    (found,) = with_spare_gpus((node,), jobs, gres)
    return found.shareable


def test_each_gpu_is_found_with_the_job_that_uses_it_beside_its_holder(
    node: Node, jobs: list[QueuedJob]
) -> None:
    satellite = jobs[2].job_id
    assert shareable(node, jobs) == (SpareGpu(0, "s0"), SpareGpu(1, "s1", satellite, in_use=True))
    assert node.gpus == node.allocated.gpus == 2


def test_the_jobs_that_share_are_told_apart(jobs: list[QueuedJob]) -> None:
    guarantee, base, running, held = jobs
    assert guarantee.elastic is not None
    assert (guarantee.elastic.cohost, guarantee.elastic.workers) == (True, Range(2, 2))
    assert guarantee.resources.gpus == 2
    assert base.elastic is not None
    assert (base.elastic.opportunistic, base.elastic.auto, base.resources.gpus) == (True, True, 0)
    for satellite in (running, held):
        assert satellite.satellite is not None
        assert satellite.resources.gpus == 0
    assert running.resources.devices == (Devices("spare", "s1", 1),)
    assert (held.state, held.wait, held.priority) == (JobState.PENDING, WaitReason.HELD, 0)


def test_a_gpu_is_in_use_where_only_one_of_node_and_job_says_so(node: Node, jobs: list[QueuedJob]) -> None:
    assert shareable(node, [])[1] == SpareGpu(1, "s1", None, in_use=True)
    quiet = replace(node, allocated=Resources())
    assert shareable(quiet, jobs)[1] == SpareGpu(1, "s1", jobs[2].job_id, in_use=True)
    assert not shareable(quiet, jobs)[0].in_use


def test_a_waiting_job_uses_nothing(node: Node, jobs: list[QueuedJob]) -> None:
    held = replace(jobs[3], resources=Resources(devices=(Devices("spare", "s0"),)))
    assert not shareable(node, [held])[0].in_use


def test_a_job_elsewhere_uses_nothing_here(node: Node, jobs: list[QueuedJob]) -> None:
    assert shareable(replace(node, name="t2", allocated=Resources()), jobs)[1].job_id is None


def test_another_gres_is_none_of_it(node: Node, jobs: list[QueuedJob]) -> None:
    assert shareable(node, jobs, "left-over") == ()


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        ((Devices("spare", "", 2),), []),  # nobody could say which GPU
        ((Devices("spare", "s0", 2), Devices("spare", "s1", 1)), [1]),  # two jobs at once on one GPU
        ((Devices("spare", "first", 1), Devices("spare", "gpu3", 1)), [3]),
        (tuple(Devices("spare", f"s{index}", 1) for index in (0, 1, 10, 11, 2)), [0, 1, 2, 10, 11]),
    ],
)
def test_what_does_not_stand_for_one_gpu_is_left_out(
    node: Node, devices: tuple[Devices, ...], indices: list[int]
) -> None:
    odd = replace(node, capacity=replace(node.capacity, devices=devices), allocated=Resources())
    assert [gpu.index for gpu in shareable(odd, [])] == indices


@pytest.mark.parametrize(
    ("type_name", "index"),
    [("s0", 0), ("s12", 12), ("gpu3", 3), ("7", 7), ("s", None), ("", None), ("3s", None)],
)
def test_a_types_number_is_the_gpus_index(type_name: str, index: int | None) -> None:
    assert index_of(type_name) == index
