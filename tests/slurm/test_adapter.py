"""SlurmCluster on a real cluster: what it sees, what it changes, and what it does when nobody answers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo.clusters.base import ActionRefused, ClusterState, ClusterUnreachable, Priority, Site
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.connecting import connect
from flexo.clusters.slurm.reader_pyslurm import PyslurmReader, is_installed
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.model.nodes import Node
from flexo.model.queue import ElasticRequest, JobKey, JobState, QueuedJob, SatelliteTag
from flexo.model.ranges import Range
from flexo_lab import Lab, Profile
from flexo_protos.resources import Resources

_SLEEP = "exec sleep 600"
_TAG = "flexo-satellite base={base} restart=0 grant=g-1 workers=2"


@pytest.fixture(scope="module")
def typed_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """Without flexod, so that nobody else changes anything; GPUs of a type."""
    lab = make_lab(nodes=2, gpus_per_node=4, infer_nodes=1, gpu_type="v100", flexod=False)
    yield lab
    lab.down()


@pytest.fixture
def quiet_lab(typed_lab: Lab) -> Iterator[Lab]:
    """That lab, handed to the next test without jobs."""
    yield typed_lab
    cancel_all_jobs(typed_lab)


@pytest.fixture
def cluster(quiet_lab: Lab) -> SlurmCluster:
    return _cluster(quiet_lab)


def _cluster(lab: Lab, timeout_s: float = 10.0) -> SlurmCluster:
    return SlurmCluster(SlurmSettings(conf=lab.layout.slurm_conf, timeout_s=timeout_s))


def _submit(lab: Lab, *options: str, script: str = _SLEEP) -> int:
    """Submit a job of one task with 100 MB, five minutes and no output, unless `options` say otherwise."""
    usual = ["--parsable", "--output=/dev/null", "--mem=100", "--time=5", "--ntasks=1"]
    done = lab.run(["sbatch", *usual, *options, f"--wrap={script}"])
    return int(done.stdout.strip())


def _seen(
    cluster: SlurmCluster, wanted: Callable[[ClusterState], bool], patience_s: float = 90
) -> ClusterState:
    """The first look that shows what is wanted."""
    deadline = time.monotonic() + patience_s
    while not wanted(state := cluster.observe()):
        assert time.monotonic() < deadline, f"not seen within {patience_s} s: {state}"
        time.sleep(0.3)
    return state


def _job(state: ClusterState, job_id: int) -> QueuedJob:
    return next(job for job in state.jobs if job.job_id == job_id)


def _node(state: ClusterState, name: str) -> Node:
    return next(node for node in state.nodes if node.name == name)


def _runs(job_id: int) -> Callable[[ClusterState], bool]:
    return lambda state: any(job.job_id == job_id and job.state is JobState.RUNNING for job in state.jobs)


def _wait_for(reasons: Mapping[int, str]) -> Callable[[ClusterState], bool]:
    """Jobs by what Slurm says that they wait for, which it does not say at once."""
    return lambda state: all(_job(state, job_id).reason == reason for job_id, reason in reasons.items())


def test_idle_nodes_are_seen_with_all_they_have(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    state = _seen(cluster, lambda state: not any(node.unusable for node in state.nodes))
    assert {node.name: (node.gpus, node.gpu_type, node.gpus_idle) for node in state.nodes} == {
        "t1": (4, "v100", 4),
        "t2": (4, "v100", 4),
        "i1": (4, "v100", 4),
    }
    assert _node(state, "t1").capacity.holds(Resources(gpus=1, cpus=2, gpu_type="v100")) == 4
    tiers = {partition.name: partition.priority_tier for partition in state.partitions}
    assert tiers["infer"] > tiers["train"] > tiers["flex"]
    assert {part.name: part.nodes for part in state.partitions}["train"] == frozenset({"t1", "t2"})
    assert state.jobs == ()


def test_the_traits_name_the_cluster_and_its_pace(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    traits = cluster.traits()
    assert traits.name == f"flexo_{quiet_lab.name.replace('-', '_')}"
    assert traits.version.count(".") == 2
    assert 3.0 <= traits.starts.turn_s < 30.0  # what cycles take comes on top


def test_a_running_job_is_seen_with_what_it_holds(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    before = time.time()
    job_id = _submit(
        quiet_lab, "--partition=train", "--nodelist=t1", "--gres=gpu:v100:3", "--cpus-per-task=2"
    )
    state = _seen(cluster, _runs(job_id))
    job, node = _job(state, job_id), _node(state, "t1")
    assert (job.owner, job.user, job.partitions, job.nodes) == ("0", "root", ("train",), ("t1",))
    assert job.resources == Resources(gpus=3, cpus=2, memory_mib=100, gpu_type="v100")
    assert job.requests[0].unit.gpus == 3
    assert (job.time_limit_s, job.restart_count, job.reason, job.account) == (300, 0, "None", "")
    assert before - 2 <= job.submitted_at <= (job.started_at or 0) <= time.time()
    assert (node.allocated.gpus, node.gpus_idle, node.allocated.cpus) == (3, 1, 2)
    assert node.allocated.memory_mib == 100


def test_pending_jobs_have_reasons_and_planned_starts(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    holder = _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gres=gpu:4")
    _seen(cluster, _runs(holder))
    waiting = _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gpus=2", "--exclude=t2")
    held = _submit(quiet_lab, "--partition=train", "--hold", "--gpus-per-node=1", "--nodes=2", "--ntasks=2")
    dependent = _submit(quiet_lab, "--partition=train", f"--dependency=afterok:{holder}")
    reasons = _wait_for({waiting: "Resources", held: "JobHeldUser", dependent: "Dependency"})
    state = _seen(cluster, lambda state: reasons(state) and _job(state, waiting).started_at is not None)
    job = _job(state, waiting)
    assert job.state is JobState.PENDING
    assert (job.resources.gpus, job.requests[0].per_node, job.nodes) == (2, 2, ())
    assert (job.required_nodes, job.excluded_nodes) == (frozenset({"t1"}), frozenset({"t2"}))
    assert job.started_at == pytest.approx((_job(state, holder).started_at or 0) + 300, abs=2)
    assert (_job(state, held).resources.gpus, _job(state, held).num_nodes) == (2, 2)


def test_a_job_array_is_one_waiting_job_and_its_running_tasks(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    array = _submit(quiet_lab, "--partition=train", "--array=1-40%1", "--gpus=1")
    state = _seen(
        cluster, lambda state: sorted(job.state.value for job in state.jobs) == ["PENDING", "RUNNING"]
    )
    assert _job(state, array).state is JobState.PENDING


def test_a_drained_a_reserved_and_an_exclusive_node_are_unusable(
    quiet_lab: Lab, cluster: SlurmCluster
) -> None:
    quiet_lab.run(["scontrol", "update", "NodeName=i1", "State=DRAIN", "Reason=broken fan\nState=IDLE"])
    reserve = [
        "Reservation=flexo-test",
        "StartTime=now",
        "Duration=10",
        "Nodes=t2",
        "Users=root",
        "Flags=maint",
    ]
    quiet_lab.run(["scontrol", "create", *reserve])
    try:
        job_id = _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--exclusive")
        exclusively = f"held exclusively by job {job_id}"

        def all_say_why(state: ClusterState) -> bool:
            drained, reserved, held = (_node(state, name).unusable for name in ("i1", "t2", "t1"))
            return drained.startswith("IDLE+DRAIN: broken") and "MAINT" in reserved and held == exclusively

        state = _seen(cluster, all_say_why)
        assert _node(state, "i1").unusable.startswith("IDLE+DRAIN: broken fan")
        assert _job(state, job_id).exclusive
    finally:
        quiet_lab.run(["scontrol", "delete", "Reservation=flexo-test"])
        quiet_lab.run(["scontrol", "update", "NodeName=i1", "State=RESUME"])
    cancel_all_jobs(quiet_lab)
    _seen(cluster, lambda state: not any(node.unusable for node in state.nodes))


def test_a_node_that_backfill_has_planned_for_a_job_is_unusable(
    quiet_lab: Lab, cluster: SlurmCluster
) -> None:
    _seen(cluster, _runs(_submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gres=gpu:4")))
    _submit(quiet_lab, "--partition=train", "--nodes=2", "--ntasks=2", "--gres=gpu:4")
    _seen(cluster, lambda state: _node(state, "t2").unusable == "IDLE+PLANNED")


def test_a_comment_of_several_lines_forges_nothing(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    forged = "x\n77|0|root|flex|RUNNING|\x1e" + _TAG.format(base=1) + "\nNodeName=t9 State=IDLE\t\xe9"
    job_id = _submit(quiet_lab, "--partition=flex", "--job-name=a\nb|c", f"--comment={forged}")
    state = _seen(cluster, _runs(job_id))
    assert [job.job_id for job in state.jobs] == [job_id]
    assert _job(state, job_id).satellite is None
    assert {node.name for node in state.nodes} == {"t1", "t2", "i1"}


def test_elastic_jobs_and_satellites_are_known_by_their_marks(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    base = _submit(quiet_lab, "--partition=train", "--gpus=1")
    token = "site note flexo{workers=2-8;fungible;batch=32-256}"
    quiet_lab.run(["scontrol", "update", f"JobId={base}", f"AdminComment={token}"])
    tag = _TAG.format(base=base)
    satellite = _submit(quiet_lab, "--partition=flex", "--gpus=2", f"--comment={tag}")
    elsewhere = _submit(quiet_lab, "--partition=train", f"--comment={tag}")
    state = _seen(cluster, _runs(satellite))
    assert _job(state, base).elastic == ElasticRequest(Range(2, 8), fungible=True, batch=Range(32, 256))
    assert _job(state, satellite).satellite == SatelliteTag(JobKey(base), "g-1", 2)
    assert _job(state, elsewhere).satellite is None


def test_a_node_lent_at_run_time_is_seen_in_its_new_partition(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    cluster.observe()
    quiet_lab.run(["scontrol", "update", "PartitionName=borrowed", "Nodes=i1"])
    try:
        state = cluster.observe()
    finally:
        quiet_lab.run(["scontrol", "update", "PartitionName=borrowed", "Nodes="])
    assert {part.name: part.nodes for part in state.partitions}["borrowed"] == frozenset({"i1"})
    assert {part.name: part.nodes for part in cluster.observe().partitions}["borrowed"] == frozenset()


def test_an_extension_moves_the_end_of_a_running_job(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    job_id = _submit(quiet_lab, "--partition=flex", "--time=1")
    _seen(cluster, _runs(job_id))
    before = time.time()
    cluster.extend([str(job_id)], 330)
    after = time.time()
    end = quiet_lab.run(
        ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", f"--jobs={job_id}", "--format=%e"]
    )
    assert before + 330 - 2 <= float(end.stdout) <= after + 330 + 2  # Slurm counts in whole seconds


def test_what_has_not_started_or_has_ended_is_not_extended(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    held = _submit(quiet_lab, "--partition=flex", "--hold")
    with pytest.raises(
        ActionRefused, match=rf"scontrol update JobId={held} EndTime=now\+300seconds.*failed: \w"
    ):
        cluster.extend([str(held)], 300)
    cluster.cancel(str(held))
    with pytest.raises(ActionRefused):
        cluster.extend([str(held)], 300)
    with pytest.raises(ActionRefused, match="Invalid job id"):
        cluster.extend([str(999_999)], 300)


def test_the_others_are_extended_where_slurm_refuses_some(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    running = [_submit(quiet_lab, "--partition=flex", "--time=1") for _ in range(2)]
    held = _submit(quiet_lab, "--partition=flex", "--hold")
    state = _seen(cluster, lambda state: all(_runs(job_id)(state) for job_id in running))
    assert {_job(state, job_id).time_limit_s for job_id in running} == {60}
    with pytest.raises(ActionRefused) as refused:
        cluster.extend([str(job_id) for job_id in (running[0], held, 999_999, running[1])], 600)
    assert refused.value.jobs == {str(held), "999999"}
    assert str(refused.value).count("for job") == 2
    state = cluster.observe()
    assert all((_job(state, job_id).time_limit_s or 0) >= 600 for job_id in running)


def test_a_satellite_that_slurm_takes_back_is_not_extended(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    satellite = _submit(quiet_lab, "--partition=flex", "--nodelist=t1", "--gpus=4")
    _seen(cluster, _runs(satellite))
    _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gpus=4")
    deadline = time.monotonic() + 90
    preempted_at = ["squeue", "--noheader", f"--jobs={satellite}", "--Format=PreemptTime"]
    while quiet_lab.run(preempted_at).stdout.strip() in ("", "N/A"):
        assert time.monotonic() < deadline, "Slurm did not preempt the satellite"
        time.sleep(0.2)
    assert _job(cluster.observe(), satellite).state is JobState.RUNNING
    with pytest.raises(ActionRefused):
        cluster.extend([str(satellite)], 300)


def test_a_cancelled_job_ends_and_may_be_cancelled_again(quiet_lab: Lab, cluster: SlurmCluster) -> None:
    job_id = _submit(quiet_lab, "--partition=flex")
    _seen(cluster, _runs(job_id))
    cluster.cancel(str(job_id))
    _seen(cluster, lambda state: state.jobs == ())
    cluster.cancel(str(job_id))
    cluster.cancel("999999")


def test_a_user_may_not_cancel_anothers_job_and_is_told_so(quiet_lab: Lab) -> None:
    job_id = _submit(quiet_lab, "--partition=flex")
    program = "import sys; from pathlib import Path; from flexo.clusters.slurm.adapter import SlurmCluster; "
    program += "from flexo.clusters.slurm.settings import SlurmSettings; "
    program += "SlurmCluster(SlurmSettings(conf=Path(sys.argv[1]), timeout_s=5)).cancel(sys.argv[2])"
    done = quiet_lab.run(
        ["python", "-c", program, str(quiet_lab.layout.slurm_conf), str(job_id)], user="nobody", check=False
    )
    assert "ActionRefused" in done.stderr
    assert f"scancel --quiet {job_id}` failed" in done.stderr


def test_a_controller_that_does_not_answer_is_unreachable_within_the_timeout(quiet_lab: Lab) -> None:
    cluster = _cluster(quiet_lab, timeout_s=2.0)
    job_id = _submit(quiet_lab, "--partition=flex")
    _seen(cluster, _runs(job_id))
    slurmctld = int((quiet_lab.layout.state / "slurmctld.pid").read_text())
    os.kill(slurmctld, signal.SIGSTOP)
    try:
        for ask in (
            cluster.observe,
            cluster.traits,
            lambda: cluster.extend([str(job_id)], 300),
            lambda: cluster.cancel(str(job_id)),
        ):
            started = time.monotonic()
            with pytest.raises(ClusterUnreachable, match=r"did not answer within 2 s"):
                ask()
            assert time.monotonic() - started < 10  # Slurm's own commands wait longer
    finally:
        os.kill(slurmctld, signal.SIGCONT)
    # What nobody answered may be carried out later all the same: the job may have been cancelled.
    assert [job.job_id for job in _cluster(quiet_lab, 60.0).observe().jobs] in ([job_id], [])


def test_where_slurmdbd_is_a_jobs_gpus_are_slurms_own_sum_and_users_have_shares(make_lab: LabFactory) -> None:
    lab = make_lab(nodes=1, gpus_per_node=2, infer_nodes=0, flexod=False, profile=Profile.ACCOUNTING)
    try:
        cluster = _cluster(lab)
        job_id = _submit(lab, "--partition=train", "--gpus-per-task=2")
        state = _seen(cluster, _runs(job_id))
        job = _job(state, job_id)
        assert (job.resources.gpus, job.priority > 0, job.account) == (2, True, "root")
        read = cluster.user_shares()
        factors = {share.user: share.factor for share in read.shares}
        assert {"games", "news", "daemon"} <= factors.keys()
        assert all(0.0 <= factor <= 1.0 for factor in factors.values())
        assert read.read_cost_s > 0
    finally:
        lab.down()


def test_a_cluster_without_slurmdbd_has_no_shares(cluster: SlurmCluster) -> None:
    with pytest.raises(ActionRefused, match="sshare"):
        cluster.user_shares()


def test_priorities_are_set_and_those_of_jobs_that_are_gone_come_too_late(
    quiet_lab: Lab, cluster: SlurmCluster
) -> None:
    holder = _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gres=gpu:4")
    _seen(cluster, _runs(holder))
    array = _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gres=gpu:4", "--array=1-9")
    plain = _submit(quiet_lab, "--partition=train", "--nodelist=t1", "--gres=gpu:4")
    wanted = tuple(
        Priority(str(job), 4_294_950_000 + place) for place, job in enumerate((holder, array, plain))
    )
    cluster.prioritize((*wanted, Priority(str(plain + 1_000), 4_294_950_003)))
    seen = {job.job_id: job.priority for job in cluster.observe().jobs}
    assert (seen[array], seen[plain]) == (4_294_950_001, 4_294_950_002)
    quiet_lab.run(["scontrol", "release", str(plain)])
    assert {job.job_id: job.priority for job in cluster.observe().jobs}[plain] < 4_294_910_000


@pytest.mark.skipif(
    not is_installed(), reason="pyslurm is not installed; make test-slurm-matrix makes a place where it is"
)
def test_pyslurm_and_slurms_commands_see_the_same(make_lab: LabFactory) -> None:
    lab = make_lab(nodes=2, gpus_per_node=4, infer_nodes=1, flexod=False, profile=Profile.ACCOUNTING)
    reader = PyslurmReader(lab.layout.slurm_conf, frozenset({"flex"}), 10.0)
    try:
        _submit_one_of_each(lab)
        with_commands = _cluster(lab)
        with_pyslurm = SlurmCluster(SlurmSettings(conf=lab.layout.slurm_conf, timeout_s=10.0), reader=reader)
        assert reader.why_not_enough() == ""
        deadline = time.monotonic() + 90
        while differences := _differences(with_commands.observe(), with_pyslurm.observe()):
            assert time.monotonic() < deadline, differences
            time.sleep(0.5)
        assert len(with_pyslurm.observe().jobs) == 9
        chosen = connect(SlurmSettings(conf=lab.layout.slurm_conf, timeout_s=10.0), Site())
        assert chosen.read_with == reader.name
    finally:
        reader.close()
        lab.down()


@pytest.mark.skipif(
    not is_installed(), reason="pyslurm is not installed; make test-slurm-matrix makes a place where it is"
)
def test_pyslurm_is_left_alone_where_it_does_not_show_enough(quiet_lab: Lab) -> None:
    reader = PyslurmReader(quiet_lab.layout.slurm_conf, frozenset({"flex"}), 10.0)
    assert "AccountingStorageTRES does not track gres/gpu" in reader.why_not_enough()
    reader.close()
    cluster = connect(SlurmSettings(conf=quiet_lab.layout.slurm_conf, timeout_s=10.0), Site())
    assert cluster.read_with.startswith("Slurm's commands (pyslurm is installed, but ")
    assert len(cluster.observe().nodes) == 3


@pytest.mark.skipif(
    not is_installed(), reason="pyslurm is not installed; make test-slurm-matrix makes a place where it is"
)
def test_a_controller_that_does_not_answer_pyslurm_is_unreachable_too(quiet_lab: Lab) -> None:
    reader = PyslurmReader(quiet_lab.layout.slurm_conf, frozenset({"flex"}), 2.0)
    assert len(reader.look()[1]) == 3
    slurmctld = int((quiet_lab.layout.state / "slurmctld.pid").read_text())
    os.kill(slurmctld, signal.SIGSTOP)
    try:
        with pytest.raises(ClusterUnreachable, match=r"pyslurm \(jobs\) did not answer within 2 s"):
            reader.look()
    finally:
        os.kill(slurmctld, signal.SIGCONT)
    assert len(reader.look()[1]) == 3
    reader.close()


def _submit_one_of_each(lab: Lab) -> None:
    """Jobs that differ in how they ask, so that readers have something to differ in."""
    base = _submit(lab, "--partition=train", "--nodelist=t1", "--gpus=1", "--comment=a\nb\xe9", "-JN/A")
    lab.run(["scontrol", "update", f"JobId={base}", "AdminComment=flexo{workers=1-4}"])
    _submit(lab, "--partition=flex", "--nodelist=t1", "--gres=gpu:2", f"--comment={_TAG.format(base=base)}")
    _submit(lab, "--partition=train", "--nodelist=t2", "--exclusive", "--time=1-02:00:00")
    _submit(lab, "--partition=train", "--ntasks=2", "--gpus-per-task=2", "--exclude=t2")
    _submit(lab, "--partition=train,infer", "--nodelist=t2", "--gpus-per-node=3")
    _submit(lab, "--partition=train", "--array=1-20%2", "--gpus=1", "--hold")
    _submit(lab, "--partition=train", "--nodes=2", "--ntasks=2", "--cpus-per-task=8", "--mem=1536")
    _submit(lab, "--partition=infer", "--gres=gpu", "--time=0", "--job-name=a|b\n\udcff")
    _submit(lab, "--partition=train", f"--dependency=afterok:{base}")
    lab.run(["scontrol", "update", "NodeName=i1", "State=DRAIN", "Reason=broken fan\nState=IDLE"])


def _differences(left: ClusterState, right: ClusterState) -> list[str]:
    """What one look has and the other has not, whatever the order."""
    ours = {*left.nodes, *left.partitions, *left.jobs}
    theirs = {*right.nodes, *right.partitions, *right.jobs}
    return sorted(map(str, ours ^ theirs))
