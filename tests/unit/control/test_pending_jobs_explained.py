"""`flexo why` of a job that waits: what it needs, its turn, its planned start, and what lets it start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flat_records import make_job, make_node
from says import says

from flexo.clusters.base import ClusterState
from flexo.clusters.slurm.wait_reasons import remedy
from flexo.control.explanations import explain
from flexo.control.pending import explain_pending, headline_of_pending, places
from flexo.control.views import View
from flexo.model.nodes import Partition
from flexo.model.queue import (
    ElasticRequest,
    JobKey,
    JobState,
    Principal,
    QueuedJob,
    Request,
    SatelliteTag,
    WaitReason,
)
from flexo.model.ranges import Range
from flexo_protos.resources import Resources

NOW = 100_000.0


def pending(job_id: int, gpus: int = 9, priority: int = 1, **changes: object) -> QueuedJob:
    job = make_job(
        job_id=job_id, owner=Principal("9"), user="eve", partitions=("train",), state=JobState.PENDING,
        wait=WaitReason.RESOURCES, reason="Resources", priority=priority, submitted_at=NOW - 720,
        started_at=None, time_limit_s=None, nodes=(), num_nodes=1,
        elastic=ElasticRequest(Range(gpus, gpus)),
    )  # fmt: skip
    return replace(job, resources=Resources(gpus), **changes)  # type: ignore[arg-type]


def view(*jobs: QueuedJob, order: tuple[JobKey, ...] = ()) -> View:
    nodes = (
        make_node("n1", 8, 6, 8, 6, 8000, 0, frozenset({"train"})),
        make_node("n2", 8, 0, 8, 0, 8000, 0, frozenset({"other"})),
    )
    partitions = (Partition("train", 1, frozenset({"n1"})), Partition("other", 1, frozenset({"n2"})))
    return View(ClusterState(NOW, nodes, partitions, jobs, 0.1), order=order)


def told(job: QueuedJob, *others: QueuedJob, order: tuple[JobKey, ...] = ()) -> str:
    return "\n".join(explain_pending(job, view(job, *others, order=order)))


def test_a_job_that_waits_for_gpus_says_how_many_it_needs_and_how_many_of_its_partition_are_idle() -> None:
    job = pending(7, gpus=4)
    state = view(job).state
    assert state is not None
    assert headline_of_pending(job, state) == (
        "0 of 4-4 workers: pending, for resources (Resources):"
        " it needs 4 GPUs, and 2 are idle in partition train"
    )
    assert "train has only 8" in headline_of_pending(pending(7, gpus=9), state)


def rigid(**changes: object) -> QueuedJob:
    return pending(5, gpus=4, elastic=None, **changes)


def test_a_job_that_is_not_elastic_says_what_it_waits_for_in_the_same_words() -> None:
    waits = rigid(wait=WaitReason.TURN, reason="Priority")
    first, *more = explain(5, view(waits))
    assert says(first, "job 5", "not elastic", "--elastic")
    assert says(more[0], 12, "min", "for its turn", "(Priority)", "4 GPUs", "2 are idle in partition train")
    assert "number 1 of 1 pending jobs" in " ".join(more)
    held = rigid(wait=WaitReason.HELD, reason="JobHeldUser", remedy="release it")
    assert "release it" in explain(5, view(held))
    assert "satellites" not in " ".join(explain(5, view(held))), "they would not help it"
    assert len(explain(5, view(rigid(state=JobState.RUNNING)))) == 1


def satellite(gpus: int) -> QueuedJob:
    """A satellite on n1, as the queue shows it."""
    tag = SatelliteTag(JobKey(1), "g1", gpus)
    return replace(runs(2, "n1"), resources=Resources(gpus), satellite=tag)


@pytest.mark.parametrize(("held", "suffices"), [(1, False), (2, True)])
def test_satellites_that_would_not_let_it_start_are_said_to_stay(held: int, suffices: bool) -> None:
    """A researcher read that satellites give 3 GPUs back, where 8 were needed and 2 idle."""
    job = pending(7, gpus=4)
    (said,) = (each for each in explain_pending(job, view(job, satellite(held))) if "satellites hold" in each)
    assert "in partition train" in said
    assert ("would not let it start" in said) != suffices
    assert suffices or says(said, "3 of the 4")


def runs(job_id: int, node: str) -> QueuedJob:
    return replace(
        pending(job_id, gpus=1, elastic=None), state=JobState.RUNNING, nodes=(node,), wait=WaitReason.NONE
    )


def whole_nodes(nodes: int) -> QueuedJob:
    """A pending job that wants nodes for itself alone."""
    request = Request.on_each_node(nodes, Resources(1), whole_nodes=True)
    return replace(rigid(num_nodes=nodes), resources=Resources(nodes), requests=(request,))


def test_a_job_that_wants_whole_nodes_says_so_and_is_not_said_to_wait_for_satellites_alone() -> None:
    """A newcomer read that satellites give GPUs back for it, while it waited for jobs beside them to end."""
    said = " ".join(explain(5, view(whole_nodes(1), satellite(2), runs(8, "n1"))))
    assert says(
        said, "1 GPU on 1 node for itself alone", "would not let it start", "1 job that is no satellite"
    )
    satellites_alone = make_node("n1", 8, 2, 8, 0, 8000, 0, frozenset({"train"}))
    state = view(whole_nodes(1), satellite(2)).state
    assert state is not None
    said = " ".join(explain(5, View(replace(state, nodes=(satellites_alone,)))))
    assert says(said, "satellites hold 2 GPUs", "give way to it")
    assert "no satellite runs" not in said


def test_a_node_that_nobody_may_use_is_named_with_its_reason() -> None:
    job = pending(7, gpus=4)
    node = make_node("n1", 8, 6, 8, 6, 8000, 0, frozenset({"train"}), unusable="IDLE+DRAIN: bad fan")
    state = view(job).state
    assert state is not None
    (said,) = (each for each in explain_pending(job, View(replace(state, nodes=(node,)))) if "n1" in each)
    assert says(said, "cannot be used", "bad fan")


def test_its_place_is_that_of_the_policy_or_else_of_the_clusters_priorities() -> None:
    low, high = pending(7, priority=1), pending(8, priority=5)
    held = pending(9, priority=9, wait=WaitReason.HELD, reason="JobHeldUser")
    assert "number 2 of 2 pending jobs" in told(low, high, held)
    assert "policy's order of pending jobs it is number 1 of 2" in told(low, high, order=(low.key, high.key))
    assert places(view(low, high, held)) == {high.key: 1, low.key: 2}
    assert "number" not in told(held, low)


def test_a_planned_start_is_told_unless_it_rests_on_jobs_without_an_end() -> None:
    assert "plans its start in 10 min" in told(pending(7, started_at=NOW + 600))
    assert "cannot foresee its start" in told(pending(7, started_at=NOW + 365 * 86_400))
    assert "start in" not in told(pending(7))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("JobHeldUser", "its user has held it: scontrol release 7"),
        ("(JobHeldAdmin)", "an administrator"),
        ("JobHoldMaxRequeue", "failed too often"),
        ("DependencyNeverSatisfied", "scancel 7"),
        ("Resources", ""),
    ],
)
def test_what_would_let_it_start_is_said_with_slurms_command(reason: str, words: str) -> None:
    assert words in remedy(reason, 7)
    assert bool(remedy(reason, 7)) == bool(words)
    assert remedy(reason, 7) in told(pending(7, remedy=remedy(reason, 7)))
