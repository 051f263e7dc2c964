"""A cluster in virtual time: plans are carried out as a whole or refused with a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexo.clusters.base import ActionRefused, Allocates, ImpossiblePlan
from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo.model.plans import Allocate, Drop
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, Quota, TrainingJob
from flexo_protos.resources import Resources

GROUPS = (NodeGroup(2, 4, "v100", "v"), NodeGroup(1, 8, "t4", "t", frozenset({"inference"})))


class PlainTrainer:
    """Shares are all that changes."""

    def __init__(self) -> None:
        self.dropped: list[JobKey] = []

    def reshare(self, job: TrainingJob, allocation: Allocate) -> TrainingJob:
        return replace(job, shares=allocation.shares, shared=allocation.shared)

    def drop(self, job: TrainingJob) -> None:
        self.dropped.append(job.key)


class Fixture:
    def __init__(self) -> None:
        self.trainer = PlainTrainer()
        quotas = (Quota("physics", 4),)
        self.cluster = SimulatedCluster(make_nodes(GROUPS), self.trainer, lambda: 5.0, quotas)

    def submit(self, number: int, workers: str = "1-8", gpus: int = 1, **changes) -> TrainingJob:
        shape = Resources(gpus, 1, gpu_type=changes.pop("gpu_type", ""))
        job = TrainingJob(JobKey(number), "ada", Range.parse(workers), shape, 0.0, **changes)
        self.cluster.submit(job)
        return job

    def held(self) -> dict[str, int]:
        return {node.name: node.allocated.gpus for node in self.cluster.observe().nodes}

    def shares(self, number: int) -> tuple[NodeShare, ...]:
        return next(job for job in self.cluster.observe().training if job.key.job_id == number).shares


@pytest.fixture
def on() -> Fixture:
    return Fixture()


def give(number: int, **workers: int) -> Allocate:
    return Allocate(JobKey(number), tuple(NodeShare(node, count) for node, count in workers.items()), "")


def test_nodes_are_as_their_groups_say(on):
    nodes = on.cluster.observe().nodes
    assert [(node.name, node.gpus, node.gpu_type) for node in nodes] == [
        ("v1", 4, "v100"),
        ("v2", 4, "v100"),
        ("t1", 8, "t4"),
    ]
    assert nodes[2].features == {"inference"}
    with pytest.raises(ValueError, match="same name"):
        make_nodes((NodeGroup(1, 4), NodeGroup(2, 4), NodeGroup(3, 8)))


def test_what_is_allocated_is_held_until_the_job_ends(on):
    on.submit(1, gpus=2)
    on.cluster.allocate([give(1, v1=2, v2=1)], [])
    assert on.held() == {"v1": 4, "v2": 2, "t1": 0}
    on.cluster.end(JobKey(1))
    state = on.cluster.observe()
    assert on.held() == {"v1": 0, "v2": 0, "t1": 0}
    assert (state.at, state.training, state.ended, state.quotas) == (5.0, (), 1, (Quota("physics", 4),))


def test_what_has_not_changed_is_the_same_object(on):
    on.submit(1)
    on.submit(2)
    before = on.cluster.observe()
    on.cluster.allocate([give(1, v1=1)], [])
    after = on.cluster.observe()
    assert after.nodes[1] is before.nodes[1]
    assert after.training[1] is before.training[1]
    assert on.cluster.observe().training is after.training
    assert on.cluster.observe().nodes is after.nodes
    on.cluster.end(JobKey(1))
    assert on.cluster.observe().nodes[0] is before.nodes[0]


def test_jobs_stay_in_the_order_of_submission(on):
    for number in (5, 3, 9, 4):
        on.submit(number)
    on.cluster.allocate([give(9, v1=1)], [])
    on.cluster.end(JobKey(9))
    on.submit(1)
    on.cluster.allocate([give(4, v1=1)], [Drop(JobKey(5), "")])
    assert [job.key.job_id for job in on.cluster.observe().training] == [3, 4, 1]
    assert on.trainer.dropped == [JobKey(5)]


def test_all_of_a_plan_happens_at_once(on):
    on.submit(1)
    on.submit(2)
    on.cluster.allocate([give(1, v1=4, v2=4)], [])
    on.cluster.allocate([give(2, v1=4), give(1, v2=4)], [])
    assert on.held() == {"v1": 4, "v2": 4, "t1": 0}
    on.cluster.allocate([give(2), give(1, v1=4, v2=4)], [])
    assert on.shares(2) == ()


@pytest.mark.parametrize(
    ("changes", "plan", "sentence"),
    [
        ({}, [give(1, v1=5)], r"node v1 has 4 GPUs, and is to give 6: 5 of job 1, 1 of job 3"),
        ({}, [give(1, v2=4)], r"node v2 has 4 GPUs, and is to give 6: 4 of job 1, 1 of job 3, 1 of others"),
        (
            {"gpus": 2},
            [give(1, v2=2), give(2, v2=1)],
            r"node v2 has 4 GPUs, and is to give 7: 4 of job 1, 1 of job 3, 1 of job 2, 1 of others",
        ),
        ({"workers": "2-3"}, [give(1, v2=1)], r"job 1 of 2-3 workers is to have 1"),
        ({"workers": "2-3"}, [give(1, v2=4)], r"job 1 of 2-3 workers is to have 4"),
        ({}, [give(1, x9=1)], r"job 1 is to have 1 workers on node 'x9'"),
        ({}, [give(1, v2=0, t1=1)], r"job 1 is to have 0 workers on node 'v2'"),
        (
            {},
            [Allocate(JobKey(1), (NodeShare("v2", 1), NodeShare("v2", 1)), "")],
            r"job 1 has one node twice: 1 on v2, 1 on v2",
        ),
        ({}, [give(1, v2=1), give(1, v2=2)], r"two words for job 1"),
        ({}, [give(1)], r"job 1 waits, and is to have nothing"),
        ({}, [give(7, v2=1)], r"there is no job 7"),
        (
            {"gpu_type": "v100"},
            [give(1, t1=1)],
            r"job 1 needs v100, and is to have 1 workers on t1, which has t4",
        ),
        ({}, [give(1, v2=1, t1=1)], r"job 1 is to run on t4 and v100 at once"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_changes_nothing(on, changes, plan, sentence):
    on.submit(1, **changes)
    on.submit(2)
    on.submit(3)
    on.submit(4)
    on.cluster.allocate([give(3, v1=3), give(4, v2=1)], [])
    before = on.cluster.observe()
    with pytest.raises(ImpossiblePlan, match=sentence):
        on.cluster.allocate([*plan[:1], give(3, v1=1, v2=1), *plan[1:]], [])
    assert on.cluster.observe() == before


def test_a_base_is_not_moved_and_what_is_not_preemptible_not_taken(on):
    on.submit(1)
    on.submit(2)
    on.cluster.allocate([give(1, v1=2), give(2, v2=1)], [])
    state = on.cluster.observe()
    on.cluster.renew(replace(state.training[0], base=(NodeShare("v1", 2),), preemptible=False))
    on.cluster.renew(replace(state.training[1], preemptible=False))
    with pytest.raises(ImpossiblePlan, match=r"job 1 .*base of 2 workers on v1\b.*\b1\b"):
        on.cluster.allocate([give(1, v1=1, v2=2)], [])
    for number, where in ((1, "2 on v1"), (2, "1 on v2")):
        with pytest.raises(ImpossiblePlan, match=f"job {number} is not preemptible.*{where}"):
            on.cluster.allocate([give(number)], [])
    on.cluster.allocate([give(1, v1=3), give(2, v2=4)], [])


def test_only_a_waiting_job_is_dropped(on):
    on.submit(1)
    on.cluster.allocate([give(1, v1=2)], [])
    with pytest.raises(ImpossiblePlan, match=r"job 1 .*2 workers\b.*dropped"):
        on.cluster.allocate([], [Drop(JobKey(1), "")])


def test_workers_that_may_mix_types_do(on):
    on.submit(1, gpu_type="v100", heterogeneous=True)
    on.submit(2, gpu_type="v100", fungible=True)
    on.cluster.allocate([give(1, v1=1, t1=1), give(2, t1=3)], [])
    assert on.held() == {"v1": 1, "v2": 0, "t1": 4}


def test_there_are_no_satellites(on):
    assert isinstance(on.cluster, Allocates)
    with pytest.raises(ActionRefused, match="no satellite 3"):
        on.cluster.extend(["3"], 60)
    with pytest.raises(ActionRefused, match="no satellite 3"):
        on.cluster.cancel("3")


def second(number: int, **workers: int) -> Allocate:
    return replace(give(number, **workers), shared=True)


def test_second_seats_are_counted_apart_from_the_owners_and_leave_no_gpu_less_idle(on):
    for number in (1, 2):
        on.submit(number)
    on.cluster.allocate([give(1, v1=4), second(2, v1=4)], [])
    assert on.held() == {"v1": 4, "v2": 0, "t1": 0}
    on.cluster.end(JobKey(1))
    assert on.held() == {"v1": 0, "v2": 0, "t1": 0}
    on.submit(3)
    on.cluster.allocate([give(3, v1=4)], [])
    assert on.held() == {"v1": 4, "v2": 0, "t1": 0}


def test_a_node_gives_no_more_second_seats_than_it_has_gpus(on):
    for number in (1, 2):
        on.submit(number)
    on.cluster.allocate([second(1, v1=3)], [])
    with pytest.raises(ImpossiblePlan) as refused:
        on.cluster.allocate([second(2, v1=2)], [])
    assert all(word in str(refused.value) for word in ("v1", "second", "4", "5", "2 of job 2", "3 of others"))
    on.cluster.end(JobKey(1))
    on.cluster.allocate([second(2, v1=4)], [])


def test_a_job_moves_from_a_second_seat_to_an_owners_seat_only_if_that_is_free(on):
    for number in (1, 2):
        on.submit(number)
    on.cluster.allocate([give(1, v1=4), second(2, v1=1)], [])
    with pytest.raises(ImpossiblePlan):
        on.cluster.allocate([give(2, v1=1)], [])
    on.cluster.allocate([give(1, v1=3), give(2, v1=1)], [])
    assert on.held() == {"v1": 4, "v2": 0, "t1": 0}
    on.cluster.allocate([second(2, v1=1)], [])
    assert on.held() == {"v1": 3, "v2": 0, "t1": 0}
