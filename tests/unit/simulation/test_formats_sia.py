"""The reader of Sia's artifact: jobs with the cost of their restarts, and step times on each GPU type."""

from __future__ import annotations

import pytest
from small_sia import GOOD, write_artifact

from flexo.model.ranges import Range
from flexo.model.training import NodeShare
from flexo_simulation.costs import Costs
from flexo_simulation.formats import sia
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.pollux_training import PolluxTraining

SLOWDOWN = 1.2
"""The slowdown of bert in Sia's code."""
T4, A100, RTX = "aws1", "dgx-ext1", "rtx1"


def the_job(folder, cluster=sia.MIXED):
    (job,) = sia.read(folder, "philly", 1, cluster).jobs
    return job


def training_of(folder, cluster=sia.MIXED):
    training = the_job(folder, cluster).training
    assert isinstance(training, PolluxTraining)
    return training


def step_s(run):
    """The duration of the latest step of a run."""
    speed = run.speed()
    assert speed is not None
    return speed.gradients.gain(16 / 8) / speed.rate(1, 1, 16)


def test_both_clusters_have_64_gpus_and_one_of_them_three_types():
    for cluster in sia.CLUSTERS.values():
        assert sum(group.count * group.gpus for group in cluster.nodes) == 64
    assert set(sia.EQUAL.type_of.values()) == {"aws"}
    assert set(sia.MIXED.type_of.values()) == {"aws", "dgx-ext", "rtx"}


def test_nodes_are_numbered_within_their_type_from_zero():
    assert sia.MIXED.node("aws", 0) == T4
    assert sia.MIXED.node("rtx", 2) == "rtx3"
    assert sia.MIXED.node("rtx", 3) is None


def test_a_job_has_what_its_user_chose_and_the_cost_of_its_restarts(tmp_path):
    job = the_job(write_artifact(tmp_path))
    assert (job.name, job.submitted_at, job.requested_workers) == ("bert-0", 53.5, 2)
    assert (job.workers, job.batch) == (Range(1, 64), Range(8, 32))
    assert job.costs == Costs(start_s=120.0, resize_s=120.0)
    assert training_of(tmp_path).batch == 16


def test_a_job_may_have_gpus_of_any_type(tmp_path):
    assert the_job(write_artifact(tmp_path)).shape.gpu_type == ""


def test_steps_take_as_long_as_on_the_type_of_the_node(tmp_path):
    run = training_of(write_artifact(tmp_path)).begin()
    run.advance(10.0, (NodeShare(RTX, 1),), 0)
    on_rtx = step_s(run)
    run.advance(10.0, (NodeShare(A100, 1),), 0)
    assert step_s(run) == pytest.approx(on_rtx / 2)


def test_a_step_is_longer_than_measured_by_the_slowdown_of_the_code(tmp_path):
    training = training_of(write_artifact(tmp_path), sia.EQUAL)
    assert training.application.step_times.of((1,), 16).step_s == pytest.approx(4.0 * SLOWDOWN)
    assert training.application.step_times.of((3, 1), 10).sync_s == pytest.approx(3.0 * SLOWDOWN)


def test_what_a_job_has_learnt_on_one_type_it_does_not_believe_of_another(tmp_path):
    run = training_of(write_artifact(tmp_path)).begin()
    run.advance(10.0, (NodeShare(RTX, 1),), 0)
    seen = run.speed()
    run.advance(10.0, (NodeShare(A100, 1),), 0)
    assert run.speed() != seen
    run.advance(10.0, (NodeShare(RTX, 1),), 0)
    assert run.speed() == seen


def test_a_trial_of_one_worker_tells_the_speed_on_types_where_the_job_has_not_trained(tmp_path):
    run = training_of(write_artifact(tmp_path)).begin()
    before = {name: speed.rate(1, 1) for name, speed in run.speeds()}
    assert before["dgx-ext"] == pytest.approx(2 * before["rtx"])
    run.advance(10.0, (NodeShare(RTX, 1),), 0)
    after = dict(run.speeds())
    assert after["rtx"] == run.speed()
    assert after["dgx-ext"].rate(1, 1, 16) == pytest.approx(2 * after["rtx"].rate(1, 1, 16))


def test_gpus_of_several_types_do_not_train_one_job(tmp_path):
    run = training_of(write_artifact(tmp_path)).begin()
    assert run.time_left_s((NodeShare(RTX, 1), NodeShare(A100, 1)), 0) == float("inf")


def test_a_gpu_holds_no_more_samples_than_were_measured_on_its_placement(tmp_path):
    on_a100 = training_of(write_artifact(tmp_path)).on((NodeShare(A100, 1),))
    assert on_a100 is not None
    assert on_a100.limits.local == Range(4, 16)
    assert on_a100.limits_on((2,)).local == Range(4, 8)
    assert on_a100.limits_on((1, 2)).local == Range(4, 16)  # from scalability, by its nodes and GPUs
    with pytest.raises(ValueError, match="64 GPUs on 16 nodes were never measured"):
        on_a100.limits_on((4,) * 16)


def test_workloads_of_a_trace_are_found_by_their_numbers(tmp_path):
    folder = write_artifact(tmp_path, trace="saturn")
    assert sia.numbers(folder, "saturn") == (1,)
    with pytest.raises(BadTrace, match=r"newtrace: holds no workload-<number>\.csv"):
        sia.numbers(folder, "newtrace")


def test_a_folder_that_is_not_the_artifact_is_refused(tmp_path):
    with pytest.raises(BadTrace, match="is not the folder of siasosp23/artifacts"):
        sia.read(tmp_path, "philly", 1, sia.EQUAL)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x,1,gpt9,1,16", r"workload-1\.csv:3: application is 'gpt9': it takes one of bert, cifar10"),
        ("x,1,bert,0,16", r"workload-1\.csv:3: num_replicas is '0': it takes a whole number from 1"),
        ("x,1,bert,1,7", r"workload-1\.csv:3: batch_size is '7': it takes 8 to 32, as bert was measured"),
        ("x,soon,bert,1,16", r"workload-1\.csv:3: time is 'soon': it takes seconds from 0"),
    ],
)
def test_a_job_that_makes_no_sense_is_named_by_file_and_line(tmp_path, line, why):
    with pytest.raises(BadTrace, match=why):
        the_job(write_artifact(tmp_path, f"{GOOD}{line}\n"))


@pytest.mark.parametrize(
    ("file", "line", "why"),
    [
        (
            "placements-rtx.csv",
            "1,4,fast,0",
            r"placements-rtx\.csv:2: step_time is 'fast': it takes a number",
        ),
        ("placements-rtx.csv", "1,4.5,1,0", r"placements-rtx\.csv:2: local_bsz is '4\.5': it takes a whole"),
        ("placements-rtx.csv", "4-4,4,1,0", r"placements-rtx\.csv:2: placement is '4-4': it takes a digit"),
        (
            "placements-rtx.csv",
            "1,4,-1,0",
            r"placements-rtx\.csv:2: step_time is '-1': it takes a number from 0",
        ),
        ("placements-rtx.csv", "1,4,1", r"placements-rtx\.csv:2: has 3 cells where the header has 4"),
    ],
)
def test_a_measurement_that_makes_no_sense_is_named_by_file_and_line(tmp_path, file, line, why):
    profile = write_artifact(tmp_path) / "sia-simulator" / "traces" / "bert" / file
    profile.write_text(f"placement,local_bsz,step_time,sync_time\n{line}\n")
    with pytest.raises(BadTrace, match=why):
        the_job(tmp_path)


def test_step_times_of_a_missing_type_are_named(tmp_path):
    (write_artifact(tmp_path) / "sia-simulator" / "traces" / "bert" / "placements-rtx.csv").unlink()
    assert the_job(tmp_path, sia.EQUAL)
    with pytest.raises(BadTrace, match=r"placements-rtx\.csv"):
        the_job(tmp_path)
