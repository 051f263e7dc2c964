"""Jobs out of what squeue printed on real clusters, hostile comments among them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from captured_outputs import RELEASES, SATELLITES, SEPARATOR, captured, jobs_of, records_of
from flat_records import make_job
from hypothesis import given
from hypothesis import strategies as st

from flexo.clusters.slurm.parse_jobs import (
    fields_to_ask,
    format_for,
    parse_excluded_nodes,
    parse_queue,
    tag_in,
    to_job,
    to_record,
)
from flexo.clusters.slurm.text import BadValue
from flexo.model.queue import ElasticRequest, JobKey, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo_protos.resources import Devices

REQUIRED = fields_to_ask("")
C_STRINGS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def printed(**changes: str) -> str:
    """What squeue prints for one ordinary job of a real cluster, fields replaced."""
    record = records_of("22.05")[-1]._replace(**changes)
    return "".join(f"{value}{SEPARATOR}" for value in record[: len(REQUIRED)]) + "\n"


def job_of(**changes: str) -> QueuedJob:
    (one,) = parse_queue(printed(**changes), REQUIRED, SEPARATOR)
    return to_job(to_record(one), SATELLITES)


@pytest.mark.parametrize("release", RELEASES)
def test_every_field_of_a_running_job_is_read(release: str) -> None:
    job = jobs_of(release)["elastic"]
    assert job == make_job(
        job_id=job.job_id,
        owner=Principal("0"),
        user="root",
        partitions=("train",),
        state=JobState.RUNNING,
        wait=WaitReason.NONE,
        reason="None",
        priority=job.priority,
        submitted_at=1795258073.0,
        started_at=1795258073.0,
        time_limit_s=300,
        nodes=("t2",),
        num_nodes=1,
        cpus=1,
        gpus=3,
        memory_mib=200,
        gpus_per_node=3,
        gpu_type="v100",
        required_nodes=frozenset({"t2"}),
        excluded_nodes=job.excluded_nodes,
        features="v100|nvlink",
        elastic=ElasticRequest(Range(2, 8), fungible=True, batch=Range(32, 256)),
        name="wrap",
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_pending_job_has_its_reason_and_its_planned_start(release: str) -> None:
    job = jobs_of(release)["two types"]
    assert job.state is JobState.PENDING
    assert job.reason in ("Resources", "Priority")
    assert job.started_at is not None
    assert job.started_at > job.submitted_at
    assert job.nodes == ()
    assert (job.resources.gpus, job.requests[0].unit.gpus, job.resources.gpu_type) == (2, 2, "")


@pytest.mark.parametrize("release", RELEASES)
def test_what_waits_of_a_job_array_is_one_job_with_the_arrays_id(release: str) -> None:
    jobs = jobs_of(release)
    assert jobs["array"].state is JobState.PENDING
    assert jobs["array"].resources.gpus == 1
    assert {jobs["array task"].state, jobs["array task 2"].state} == {JobState.RUNNING}


@pytest.mark.parametrize("release", RELEASES)
def test_the_excluded_nodes_of_a_waiting_job_are_known(release: str) -> None:
    assert jobs_of(release)["array"].excluded_nodes == frozenset({"u1"})


@pytest.mark.parametrize("release", RELEASES)
def test_gpus_asked_per_task_socket_and_job_are_multiplied(release: str) -> None:
    jobs = jobs_of(release)
    assert (jobs["per task"].resources.gpus, jobs["per task"].resources.gpu_type) == (2, "v100")
    assert jobs["per task"].requests[0].units == 2
    assert jobs["per socket"].resources.gpus == 2
    assert (jobs["held"].resources.gpus, jobs["held"].priority, jobs["held"].time_limit_s) == (10, 0, None)


@pytest.mark.parametrize("release", RELEASES)
def test_a_job_that_has_its_nodes_for_itself_is_exclusive_and_no_other(release: str) -> None:
    assert {name for name, job in jobs_of(release).items() if job.exclusive} == {
        "exclusive",
        "exclusive to a user",
    }


@pytest.mark.parametrize("release", RELEASES)
def test_memory_is_that_of_all_nodes(release: str) -> None:
    jobs = jobs_of(release)
    assert jobs["exclusive"].resources.memory_mib == 1536
    assert jobs["per task"].resources.memory_mib == 600


@pytest.mark.parametrize("release", RELEASES)
def test_a_comment_with_line_ends_forges_no_job(release: str) -> None:
    jobs = jobs_of(release)
    assert "evil\n9|0|0|root" in captured(release, "queue")
    assert len(jobs) == 13
    assert 9 not in {job.job_id for job in jobs.values()}
    assert jobs["hostile"].satellite is None


@pytest.mark.parametrize("release", RELEASES)
def test_a_satellite_is_known_by_its_tag(release: str) -> None:
    jobs = jobs_of(release)
    tag = SatelliteTag(JobKey(jobs["hostile"].job_id, 0), "g1", 2)
    assert jobs["satellite"].satellite == tag


def test_a_tag_counts_in_satellite_partitions_only() -> None:
    tag = "flexo-satellite base=1 restart=0 grant=g1 workers=2"
    assert tag_in(tag, ("flex",), SATELLITES) is not None
    assert tag_in(tag, ("train",), SATELLITES) is None
    assert tag_in(tag, ("flex", "train"), SATELLITES) is None


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("CONFIGURING", JobState.RUNNING),
        ("SUSPENDED", JobState.SUSPENDED),
        ("STOPPED", JobState.SUSPENDED),
        ("COMPLETING", JobState.COMPLETING),
        ("REQUEUED", JobState.PENDING),
        ("A_STATE_OF_TOMORROW", JobState.OTHER),
    ],
)
def test_slurms_states_are_told_apart_as_far_as_flexo_does(word: str, state: JobState) -> None:
    assert job_of(state=word).state is state


def test_where_gpus_are_tracked_slurms_own_sum_counts() -> None:
    job = job_of(tres="cpu=4,mem=4G,node=2,gres/gpu=6,gres/gpu:v100=6", tres_per_job="gres:gpu:8")
    assert (job.resources.gpus, job.resources.gpu_type) == (6, "v100")


def test_a_requeued_job_is_another_job() -> None:
    assert job_of(job_id="12", restarts="2").key == JobKey(12, 2)


def test_a_pending_job_may_name_several_partitions() -> None:
    assert job_of(partitions="train,infer").partitions == ("train", "infer")


def test_exclusive_says_what_oversubscribe_said_where_both_are_printed() -> None:
    for release in ("22.05", "24.11"):
        assert "Exclusive" not in fields_to_ask(captured(release, "squeue_help"))
    assert fields_to_ask(captured("26.05", "squeue_help"))[-2:] == ("ExcNodes", "Exclusive")


def test_devices_count_in_whatever_way_they_are_asked_for() -> None:
    by_node = {"num_nodes": "1", "tasks": "2", "sockets": "1", "tres_per_node": "gres/spare:s0:1"}
    assert job_of(**by_node, tres_per_task="cpu=1,license/a:1").resources.devices == (
        Devices("spare", "s0", 1),
    )
    for field, amount in (("tres_per_task", 2), ("tres_per_socket", 1), ("tres_per_job", 1)):
        devices = job_of(**by_node, **{field: "gres/spare:s1:1"}).resources.devices
        assert devices == (Devices("spare", "s0", 1), Devices("spare", "s1", amount))


@pytest.mark.parametrize("release", RELEASES)
def test_an_array_and_its_tasks_are_no_whole_jobs(release: str) -> None:
    jobs = jobs_of(release)
    assert {name for name, job in jobs.items() if not job.is_whole} == {"array", "array task", "array task 2"}


def test_a_component_of_a_heterogeneous_job_is_no_whole_job() -> None:
    assert job_of().is_whole
    assert not job_of(component="0").is_whole


@given(C_STRINGS, C_STRINGS)
def test_no_comment_however_written_changes_another_field(comment: str, admin_comment: str) -> None:
    job = job_of(comment=comment, admin_comment=f"{admin_comment} flexo{{workers=1-2}}")
    assert replace(job, elastic=None, satellite=None) == job_of()
    assert job.elastic == ElasticRequest(Range(1, 2))


def test_an_empty_queue_has_no_jobs() -> None:
    assert parse_queue("", REQUIRED, SEPARATOR) == []


@pytest.mark.parametrize("cut", [1, 40])
def test_output_that_was_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(BadValue, match="fields"):
        parse_queue(captured("22.05", "queue")[: -len(SEPARATOR) - cut], REQUIRED, SEPARATOR)


def test_a_nul_which_would_shift_fields_is_refused() -> None:
    with pytest.raises(BadValue, match="NUL"):
        job_of(comment="a\0b")


def test_a_field_that_is_not_understood_is_refused_with_its_words() -> None:
    with pytest.raises(BadValue, match=r"'many'.*number"):
        job_of(cpus="many")


def test_excluded_nodes_are_read_by_job() -> None:
    assert parse_excluded_nodes("39 u1,t[1-2]\n46 \n") == {39: frozenset({"u1", "t1", "t2"}), 46: frozenset()}


def test_the_format_asks_for_whole_fields() -> None:
    assert format_for(("JobID", "Comment"), "|x") == "JobID:0|x,Comment:0|x"


@pytest.mark.thorough
def test_twenty_thousand_jobs_are_read_in_about_a_second() -> None:
    one = printed(state="PENDING", nodes="", time_limit="1-00:00:00")
    running = [printed(job_id=str(number), nodes=f"n[{number}-{number + 3}]") for number in range(5_000)]
    text = one * 15_000 + "".join(running)
    started = time.process_time()
    jobs = [to_job(to_record(one), SATELLITES) for one in parse_queue(text, REQUIRED, SEPARATOR)]
    # Measured: 0.3 s. The bound only catches a parser that has become several times slower.
    assert time.process_time() - started < 2.0
    assert len(jobs) == 20_000
