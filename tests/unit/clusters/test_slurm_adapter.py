"""SlurmCluster on what real clusters printed: small scripts print it in the commands' place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from captured_outputs import RELEASES, SEPARATOR, Recorded, jobs_of
from flat_records import make_node
from small_scripts import script

from flexo.clusters.base import ClusterUnreachable
from flexo.clusters.slurm.adapter import SlurmCluster, without_exclusive_nodes, without_foreign_tags
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.model.queue import JobKey, JobState, Principal, SatelliteTag

pytestmark = pytest.mark.processes


@pytest.fixture(params=RELEASES)
def recorded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Recorded(tmp_path, request.param)


@pytest.fixture
def cluster(recorded: Recorded) -> SlurmCluster:
    return SlurmCluster(SlurmSettings(timeout_s=5.0))


def test_one_look_shows_nodes_partitions_and_jobs(cluster: SlurmCluster) -> None:
    state = cluster.observe()
    assert {node.name for node in state.nodes} == {"c1", "i1", "t1", "t2", "t3", "u1"}
    assert len(state.jobs) == 13
    assert {partition.name: len(partition.nodes) for partition in state.partitions} == {
        "train": 5,
        "infer": 1,
        "flex": 4,
        "borrowed": 0,
    }
    assert state.read_cost_s > 0


def test_a_node_that_a_job_has_for_itself_is_unusable(cluster: SlurmCluster) -> None:
    state = cluster.observe()
    (holder,) = (job for job in state.jobs if job.exclusive and job.nodes == ("t3",))
    (node,) = (node for node in state.nodes if node.name == "t3")
    assert node.unusable == f"held exclusively by job {holder.job_id}"


def test_the_traits_are_read_from_slurms_own_words(cluster: SlurmCluster) -> None:
    assert cluster.traits().name == "green"
    assert 3.0 < cluster.traits().starts.turn_s < 3.1


def test_partitions_are_not_read_again_with_every_look(cluster: SlurmCluster, recorded: Recorded) -> None:
    cluster.observe()
    cluster.observe()
    assert recorded.times("show partition -a -o") == 1
    assert recorded.times("show node -a -d -o") == 2


def test_a_node_lent_to_another_partition_is_seen_there_at_once(
    cluster: SlurmCluster, recorded: Recorded
) -> None:
    cluster.observe()
    recorded.replace("nodes", "Partitions=infer", "Partitions=infer,borrowed")
    (borrowed,) = (part for part in cluster.observe().partitions if part.name == "borrowed")
    assert borrowed.nodes == frozenset({"i1"})
    assert recorded.times("show partition -a -o") == 1


def test_a_partition_never_heard_of_is_asked_for(cluster: SlurmCluster, recorded: Recorded) -> None:
    cluster.observe()
    recorded.replace("nodes", "Partitions=infer", "Partitions=infer,new")
    recorded.replace("partitions", "PartitionName=infer", "PartitionName=new")
    assert "new" in {partition.name for partition in cluster.observe().partitions}


def test_excluded_nodes_are_known_in_every_release(cluster: SlurmCluster) -> None:
    excluding = [job for job in cluster.observe().jobs if job.excluded_nodes == frozenset({"u1"})]
    assert excluding


@pytest.mark.parametrize("recorded", ["22.05"], indirect=True)
def test_excluded_nodes_are_asked_for_once_where_they_need_a_call_of_their_own(
    cluster: SlurmCluster, recorded: Recorded
) -> None:
    jobs = cluster.observe().jobs
    cluster.observe()
    waiting = {job.job_id for job in jobs if job.state is JobState.PENDING and job.satellite is None}
    held = jobs_of("22.05")["held"].job_id
    assert held in waiting, "it wants nothing yet, and is not asked about"
    grows = {job.job_id for job in jobs if job.elastic is not None and job.state is JobState.RUNNING}
    assert grows, "an elastic job that runs may get more nodes, and is asked about"
    asked = [f"--jobs={job_id}" for job_id in sorted((waiting | grows) - {held})]
    assert (recorded.folder / "asked_for_excluded").read_text().splitlines() == asked


@pytest.mark.parametrize("recorded", ["22.05"], indirect=True)
def test_excluded_nodes_of_many_new_jobs_are_asked_for_with_one_command(
    cluster: SlurmCluster, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexo.clusters.slurm.reader_commands.ONE_BY_ONE", 1)
    jobs = cluster.observe().jobs
    assert any(job.excluded_nodes for job in jobs)
    asked = (recorded.folder / "asked_for_excluded").read_text().splitlines()
    assert asked == ["--states=PENDING,RUNNING,SUSPENDED"]


@pytest.mark.parametrize("recorded", ["22.05"], indirect=True)
def test_an_elastic_job_is_asked_about_again_once_it_runs(cluster: SlurmCluster, recorded: Recorded) -> None:
    elastic = jobs_of("22.05")["elastic"].job_id
    recorded.replace("queue", "RUNNING", "PENDING")
    cluster.observe()
    recorded.replace("queue", "PENDING", "RUNNING")
    cluster.observe()
    asked = (recorded.folder / "asked_for_excluded").read_text().splitlines()
    assert asked.count(f"--jobs={elastic}") >= 1
    assert asked[-1] == f"--jobs={elastic}"


def test_a_job_that_is_printed_as_before_is_not_read_again_and_one_that_is_not_is(
    cluster: SlurmCluster, recorded: Recorded
) -> None:
    before = {job.job_id: job for job in cluster.observe().jobs}
    recorded.replace("queue", "RUNNING", "SUSPENDED")
    after = {job.job_id: job for job in cluster.observe().jobs}
    assert after.keys() == before.keys()
    for job_id, job in after.items():
        if before[job_id].state is JobState.RUNNING:
            assert job == replace(before[job_id], state=JobState.SUSPENDED)
        else:
            assert job == before[job_id]
            assert job is before[job_id] or job.excluded_nodes, "only what squeue does not print is put to it"
    assert {job.state for job in before.values()} > {JobState.RUNNING}


def test_an_answer_that_makes_no_sense_is_no_answer(cluster: SlurmCluster, recorded: Recorded) -> None:
    recorded.replace("nodes", "GresUsed=", "State=")
    recorded.replace("nodes", "CPUAlloc=", "CPUAlloc=x")
    with pytest.raises(ClusterUnreachable, match=r"not understood.*'x1'"):
        cluster.observe()


def test_a_job_that_makes_no_sense_costs_that_job_alone(cluster: SlurmCluster, recorded: Recorded) -> None:
    before = {job.job_id: job for job in cluster.observe().jobs}
    broken = min(before)
    recorded.replace("queue", f"{broken}{SEPARATOR}", f"{broken}{SEPARATOR}x")  # its user's number
    after = {job.job_id: job for job in cluster.observe().jobs}
    found = after.pop(broken)
    assert "is not a number" in found.unreadable
    assert replace(found, unreadable="") == before.pop(broken)
    assert after == before


def test_extensions_are_one_command_that_an_administrator_can_replay(
    cluster: SlurmCluster, recorded: Recorded
) -> None:
    cluster.extend(["17", "19"], 300)
    assert recorded.times("update JobId=17,19 EndTime=now+300seconds") == 1


def test_the_tag_of_another_users_satellite_does_not_count() -> None:
    jobs = jobs_of("22.05")
    base, satellite = jobs["elastic"], jobs["satellite"]
    theirs = replace(satellite, owner=Principal("1234"), satellite=SatelliteTag(JobKey(base.job_id), "g1", 2))
    orphan = replace(satellite, owner=Principal("1234"), satellite=SatelliteTag(JobKey(999_999), "g1", 2))
    own = replace(satellite, satellite=SatelliteTag(JobKey(base.job_id), "g1", 2))
    seen = without_foreign_tags((base, theirs, orphan, own))
    assert [job.satellite is not None for job in seen] == [False, False, True, True]


def test_what_made_a_node_unusable_before_stays_said() -> None:
    node = make_node("t3", 4, 0, 8, 0, 4000, 0, frozenset({"train"}), unusable="MIXED+DRAIN: fan")
    assert without_exclusive_nodes([node], [jobs_of("22.05")["exclusive"]]) == (node,)


def test_a_job_that_slurm_has_just_forgotten_holds_no_gpus(commands_in: Path) -> None:
    cluster = SlurmCluster(SlurmSettings(timeout_s=60.0))
    script(commands_in, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert cluster.gpus_of("7", ["t1"]) == frozenset()
    script(
        commands_in,
        "scontrol",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
    )
    with pytest.raises(ClusterUnreachable):
        cluster.gpus_of("7", ["t1"])
