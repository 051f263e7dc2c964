"""Who counts as a satellite, a base or inference on a server on loan, on both kinds of clusters."""

from __future__ import annotations

from dataclasses import replace

from flat_records import change_job, make_job
from hypothesis import given
from hypothesis import strategies as st

from flexo.loaning.resident_jobs import NOBODY, in_queue, on_allocating
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo.model.training import NodeShare, TrainingJob
from flexo_protos.resources import Resources

SERVERS = ("i1", "i2")


def job(job_id: int, partition: str, *nodes: str, **changes) -> QueuedJob:
    plain = make_job(
        job_id=job_id,
        owner=Principal("1"),
        user="ada",
        partitions=(partition,),
        state=JobState.RUNNING,
        wait=WaitReason.NONE,
        reason="None",
        priority=1,
        submitted_at=0.0,
        started_at=0.0,
        time_limit_s=None,
        nodes=nodes,
        num_nodes=len(nodes),
        cpus=1,
        gpus=4,
        memory_mib=0,
    )
    return change_job(plain, **changes)


def elastic(*grants: Grant) -> ElasticJob:
    return ElasticJob(JobKey(1), "ada", Range(1, 8), Resources(1, 1), ("t1",), 1, grants=grants)


def on(*jobs: QueuedJob, grants: tuple[Grant, ...] = ()):
    return in_queue(SERVERS, jobs, [elastic(*grants)] if grants else [], "borrowed", "infer")


def test_jobs_are_told_apart_by_tag_and_partition():
    there = on(
        job(60, "borrowed", "i1", "i2"),
        job(50, "borrowed-flex", "i1", satellite=SatelliteTag(JobKey(9), "g9", 3)),
        job(90, "infer", "i2"),
        job(91, "train", "i2"),
        job(92, "borrowed", "i2", state=JobState.PENDING),
    )
    assert [base.job.job_id for base in there["i1"].bases] == [60]
    assert [(each.workers, each.grant_id) for each in there["i1"].flexible] == [(3, "")]
    assert there["i2"].inference == (90,)
    assert [base.job.job_id for base in there["i2"].bases] == [60]


def test_a_satellite_with_a_grant_is_counted_once_and_one_not_submitted_yet_counts():
    grant = Grant("g1", JobKey(1), "i1", 2, "borrowed", 0.0, SatelliteState.TRAINING, 50)
    said = Grant("g2", JobKey(1), "i2", 4, "borrowed", 0.0)
    there = on(
        job(50, "borrowed", "i1", satellite=SatelliteTag(JobKey(1), "g1", 2)),
        grants=(grant, said, replace(grant, grant_id="g3", node="t1", satellite_job_id=51)),
    )
    assert [each.grant_id for each in there["i1"].flexible] == ["g1"]
    assert [each.grant_id for each in there["i2"].flexible] == ["g2"]


def test_what_is_ending_is_still_there_and_is_not_told_again():
    leaving = Grant("g1", JobKey(1), "i1", 2, "borrowed", 0.0, SatelliteState.LEAVING, 50)
    there = on(
        job(50, "borrowed", "i1", satellite=SatelliteTag(JobKey(1), "g1", 2)),
        job(60, "borrowed", "i2", state=JobState.COMPLETING),
        grants=(leaving,),
    )
    assert there["i1"].flexible[0].leaving
    assert there["i2"].bases[0].leaving
    assert not there["i2"].empty


def test_an_inference_job_that_is_ending_does_not_use_its_server():
    assert on(job(90, "infer", "i1", state=JobState.COMPLETING))["i1"] == NOBODY


def training(workers: str, *shares: tuple[str, int], base: tuple[tuple[str, int], ...] = ()) -> TrainingJob:
    return TrainingJob(
        JobKey(1),
        "ada",
        Range.parse(workers),
        Resources(2, 1),
        0.0,
        shares=tuple(NodeShare(*share) for share in shares),
        base=tuple(NodeShare(*share) for share in base),
    )


def kinds(there) -> dict[str, tuple[int, int]]:
    """By server: flexible workers, and bases."""
    return {
        name: (sum(each.workers for each in found.flexible), len(found.bases))
        for name, found in there.items()
    }


def test_a_base_is_taken_to_be_where_nobody_wants_anything_back():
    shared = training("4-12", ("i1", 4), ("i2", 4), ("t1", 4))
    assert kinds(on_allocating(["i1"], ["i2"], [shared])) == {"i1": (4, 0), "i2": (4, 0)}
    away = training("4-12", ("i1", 4), ("i2", 4))
    assert kinds(on_allocating(["i1"], ["i2"], [away])) == {"i1": (0, 1), "i2": (4, 0)}
    assert kinds(on_allocating([], ["i1", "i2"], [away])) == {"i1": (0, 1), "i2": (4, 0)}


def test_a_base_that_the_cluster_pins_stays_a_base():
    pinned = training("4-12", ("i1", 4), ("t1", 4), base=(("i1", 4),))
    assert kinds(on_allocating(["i1"], [], [pinned])) == {"i1": (0, 1)}


def test_a_waiting_job_is_nowhere():
    assert on_allocating(["i1"], [], [training("1-4")])["i1"].empty


@given(
    least=st.integers(1, 6),
    parts=st.lists(
        st.tuples(st.sampled_from(["i1", "i2", "i3", "t1", "t2"]), st.integers(1, 4)),
        min_size=1,
        max_size=5,
        unique_by=lambda part: part[0],
    ),
    closed=st.sets(st.sampled_from(["i1", "i2", "i3"])),
)
def test_without_all_that_is_flexible_a_job_still_has_its_least(least, parts, closed):
    total = sum(workers for _, workers in parts)
    least = min(least, total)
    there = on_allocating(
        sorted({"i1", "i2", "i3"} - closed), sorted(closed), [training(f"{least}-99", *parts)]
    )
    flexible = sum(each.workers for found in there.values() for each in found.flexible)
    assert total - flexible >= least
