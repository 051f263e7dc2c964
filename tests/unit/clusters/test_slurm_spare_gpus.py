"""GPUs that Slurm can open for a second job, as two releases print their nodes and jobs."""

from __future__ import annotations

import pytest
from captured_outputs import captured, sharing_jobs_of

from flexo.clusters.slurm.parse_nodes import parse_nodes
from flexo.model.nodes import Node
from flexo.model.queue import JobState, QueuedJob, WaitReason
from flexo.model.ranges import Range
from flexo.model.sharing import number_of, shared_gpu, shared_gpus_in
from flexo.sharing.hosts import offered

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


def test_a_node_offers_each_gpu_and_says_which_has_a_second_job(node: Node) -> None:
    assert offered(node) == {0, 1}
    assert [number_of(device) for device in shared_gpus_in(node.allocated.devices)] == [1]
    assert node.gpus == node.allocated.gpus == 2, "both are held by an ordinary job"
    assert node.gpu_type == ""


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
        assert len(satellite.required_nodes) == 1
    assert (running.state, running.resources.devices) == (JobState.RUNNING, (shared_gpu(1),))
    assert held.resources.devices == (shared_gpu(0),)
    assert (held.state, held.wait, held.priority) == (JobState.PENDING, WaitReason.HELD, 0)
