"""What a leader may say: conversion to the model's words, and every bound that refuses."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo.control.leaders import GrantOffer, NodeSpeed, Orders
from flexo.model.aggregation import AggregationUse, AggregatorOffer, AggregatorOffers, UsedAggregator
from flexo.model.elastic import FailureReason, SatelliteState
from flexo.model.measured import BatchTime, TriedBatches
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo.service import wire
from flexo.service.pending_commands import CancelOrder, CheckpointOrder, Command, ProfileOrder, Result
from flexo.words import MAX_TEXT
from flexo_protos.resources import Devices, Resources, to_message
from flexo_protos.v1 import jobs_pb2 as pb

NODES = frozenset({"n1", "n2"})


def hello(**changes: object) -> pb.Hello:
    said: dict[str, object] = {
        "job_id": 7,
        "workers": pb.WorkerRange(min=2, max=8),
        "shape": pb.WorkerShape(gpus=1, cpus=2),
        "base_nodes": ["n1"],
    }
    return pb.Hello(**{**said, **changes})


def satellite(**changes: object) -> pb.Satellite:
    said: dict[str, object] = {
        "slurm_job_id": 8,
        "grant_id": "g1",
        "node": "n2",
        "workers": 3,
        "state": pb.SATELLITE_STATE_WARMING,
    }
    return pb.Satellite(**{**said, **changes})


def test_a_hello_becomes_an_introduction() -> None:
    said = wire.introduction(hello(restart_count=1))
    assert said == wire.Introduction(JobKey(7, 1), Range(2, 8), Resources(1, 2), ("n1",))


def test_what_a_worker_takes_goes_before_what_older_flexods_are_told() -> None:
    half = Resources(Fraction(1, 2), 3, 100, "h100", (Devices("spare", "s0"),))
    assert wire.introduction(hello(worker=to_message(half))).shape == half


def test_a_leader_says_how_many_workers_come_and_go_together() -> None:
    assert [wire.introduction(hello(unit=unit)).unit for unit in (0, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"job_id": 0}, "job_id"),
        ({"unit": 3}, "unit 3 of workers 2-8"),
        ({"workers": pb.WorkerRange(min=0, max=8)}, "0-8"),
        ({"workers": pb.WorkerRange(min=9, max=8)}, "9-8"),
        ({"workers": pb.WorkerRange(min=1, max=4_000_000_000)}, "100000"),
        ({"workers": None}, "0-0"),
        ({"shape": pb.WorkerShape(gpus=1)}, "cpus is 0"),
        ({"shape": pb.WorkerShape(gpus=2000, cpus=1)}, "shape.gpus is 2000"),
        ({"shape": pb.WorkerShape(cpus=1 << 20)}, "shape.cpus"),
        ({"shape": pb.WorkerShape(cpus=1, memory_mib=1 << 40)}, "shape.memory_mib"),
        ({"shape": pb.WorkerShape(cpus=1, gpu_type="a b")}, "gpu_type"),
        ({"worker": pb.Resources(gpus=1)}, "cpus is 0"),
        ({"worker": pb.Resources(cpus=1, gpu_parts=1 << 30)}, "worker.gpu_parts"),
        ({"worker": pb.Resources(cpus=1, devices=[pb.Devices(name="a b", count=1)])}, "devices.name"),
        ({"worker": pb.Resources(cpus=1, devices=[pb.Devices(name="nic")])}, "worker: devices"),
        ({"worker": pb.Resources(cpus=1, devices=[pb.Devices(name="nic", count=1)] * 17)}, "17 kinds"),
        ({"base_nodes": []}, "base_nodes"),
        ({"base_nodes": ["n1"] * 10_001}, "10001"),
        ({"base_nodes": ["$(reboot)"]}, "base_nodes"),
        ({"base_nodes": ["n" * 300]}, "base_nodes"),
        ({"base_nodes": ["n1\n"]}, "base_nodes"),
    ],
)
def test_a_hello_out_of_bounds_is_refused_and_names_what_is_wrong(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(wire.Malformed, match=named.replace("(", "\\(")):
        wire.introduction(hello(**changes))


def test_a_report_becomes_a_leader_report_of_the_proven_user() -> None:
    said = pb.Report(workers=5, generation=2, batches_committed=99, scalable=True, satellites=[satellite()])
    report = wire.leader_report(wire.introduction(hello()), Principal("1000"), said, NODES)
    assert (report.owner, report.training_workers, report.batches_committed) == (Principal("1000"), 5, 99)
    assert report.satellites[0].state is SatelliteState.WARMING
    assert report.satellites[0].satellite_job_id == 8


@pytest.mark.parametrize(
    ("satellites", "named"),
    [
        ([satellite(node="n9")], "no node 'n9'"),
        ([satellite(workers=9)], "workers is 9: at most 8"),
        ([satellite(state=0)], "SATELLITE_STATE_PENDING"),
        ([satellite(state=17)], "state 17"),
        ([satellite(grant_id="")], "grant_id"),
        ([satellite(grant_id="g" * 65)], "grant_id"),
        ([satellite(), satellite(slurm_job_id=9)], "same grant_id"),
        ([satellite(), satellite(grant_id="g2")], "same slurm_job_id"),
    ],
)
def test_a_report_of_impossible_satellites_is_refused(satellites: list[pb.Satellite], named: str) -> None:
    with pytest.raises(wire.Malformed, match=named):
        wire.leader_report(wire.introduction(hello()), 1, pb.Report(satellites=satellites), NODES)


def test_satellites_that_are_still_being_submitted_have_no_number_yet() -> None:
    waiting = [satellite(slurm_job_id=0), satellite(slurm_job_id=0, grant_id="g2")]
    report = wire.leader_report(wire.introduction(hello()), 1, pb.Report(satellites=waiting), NODES)
    assert [found.satellite_job_id for found in report.satellites] == [0, 0]


@pytest.mark.parametrize("progress", [-0.1, 1.01, float("nan"), float("inf")])
def test_a_progress_that_is_no_part_of_a_whole_is_refused(progress: float) -> None:
    job = wire.introduction(hello())
    assert wire.leader_report(job, 1, pb.Report(progress=0.25), NODES).progress == 0.25
    with pytest.raises(wire.Malformed, match=r"progress\b.*from 0 to 1\b"):
        wire.leader_report(job, 1, pb.Report(progress=progress), NODES)


def test_counts_that_the_event_store_cannot_keep_are_refused() -> None:
    job = wire.introduction(hello())
    with pytest.raises(wire.Malformed, match="batches_committed"):
        wire.leader_report(job, 1, pb.Report(batches_committed=1 << 63), NODES)
    with pytest.raises(wire.Malformed, match="workers"):
        wire.leader_report(job, 1, pb.Report(workers=100_001), NODES)


@pytest.mark.parametrize("reason", list(FailureReason))
def test_every_reason_of_the_model_has_its_word_on_the_wire(reason: FailureReason) -> None:
    number = pb.GrantFailed.Reason.Value(f"REASON_{reason.name}")
    failure = wire.grant_failure(JobKey(7), pb.GrantFailed(grant_id="g1", reason=number, message="m"))
    assert failure.reason is reason


def test_a_failure_without_a_known_reason_is_refused() -> None:
    with pytest.raises(wire.Malformed, match="REASON_LOST"):
        wire.grant_failure(JobKey(7), pb.GrantFailed(grant_id="g1", message="m"))


def test_a_failures_message_is_one_printable_line_of_bounded_length() -> None:
    said = pb.GrantFailed(
        grant_id="g1", reason=pb.GrantFailed.REASON_LOST, message="a\x1b[2J\nb" + "x" * 9999
    )
    message = wire.grant_failure(JobKey(7), said).message
    assert message.startswith("a [2J b")
    assert len(message) <= MAX_TEXT
    assert message.isprintable()


def test_grants_are_told_with_every_field() -> None:
    offer = GrantOffer("g1", "n2", 3, "flex", 300, 40, "spare")
    (grant,) = wire.to_leader(Orders((offer,), 64)).grants.grants
    assert (grant.grant_id, grant.node, grant.workers) == ("g1", "n2", 3)
    assert (grant.partition, grant.time_limit_s, grant.start_within_s, grant.qos) == (
        "flex",
        300,
        40,
        "spare",
    )


def test_speeds_are_told_beside_the_grants_and_a_leader_without_any_hears_none() -> None:
    speeds = (NodeSpeed("n1", 1.0), NodeSpeed("n2", 0.5))
    told = wire.to_leader(Orders((), 0, speeds)).grants
    assert [(each.node, each.speed) for each in told.speeds] == [("n1", 1.0), ("n2", 0.5)]
    assert not wire.to_leader(Orders(())).grants.speeds


def test_no_grants_is_still_a_message_that_says_so() -> None:
    assert wire.to_leader(Orders(())).WhichOneof("body") == "grants"


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_either_refused_or_within_bounds(data: bytes) -> None:
    message = pb.Hello()
    try:
        message.ParseFromString(data)
    except Exception:
        return
    try:
        said = wire.introduction(message)
    except wire.Malformed:
        return
    assert 1 <= said.workers.min <= said.workers.max <= wire.MAX_WORKERS
    assert said.shape.cpus >= 1


def test_commands_keep_their_id_and_what_they_ask_for() -> None:
    profile = wire.to_leader(Command(9, ProfileOrder(Range(2, 6), 30))).command
    asked = profile.profile
    assert (profile.id, asked.workers.min, asked.workers.max, asked.batches) == (9, 2, 6, 30)
    assert wire.to_leader(Command(9, CheckpointOrder("/a/b"))).command.checkpoint.path == "/a/b"
    assert wire.to_leader(Command(9, CancelOrder())).command.WhichOneof("body") == "cancel"


def point(**changes: object) -> pb.ProfilePoint:
    said = {
        "workers": 2,
        "samples_per_s": 90.0,
        "step_s": 0.1,
        "sync_s": 0.01,
        "efficiency": 1.0,
        "batches": 20,
    }
    return pb.ProfilePoint(**{**said, **changes})


def test_the_last_word_on_a_command_carries_what_was_measured_and_when() -> None:
    said = pb.CommandDone(id=9, outcome=pb.CommandDone.OUTCOME_DONE, text="all", points=[point()])
    outcome = wire.outcome(said, 5.0)
    assert (outcome.result, outcome.text) == (Result.DONE, "all")
    assert (outcome.points[0].workers, outcome.points[0].measured_at) == (2, 5.0)


@pytest.mark.parametrize(
    "points",
    [
        [point(step_s=float("nan"))],
        [point(samples_per_s=float("inf"))],
        [point(samples_per_s=1e308)],
        [point(samples_per_s=1e-20)],
        [point(step_s=1e-300)],
        [point(efficiency=-1.0)],
        [point(workers=200_000)],
        [point(), point()],
        [point(workers=number) for number in range(1, 1002)],
    ],
)
def test_points_that_no_profile_can_hold_are_refused(points: list[pb.ProfilePoint]) -> None:
    with pytest.raises(wire.Malformed):
        wire.outcome(pb.CommandDone(outcome=pb.CommandDone.OUTCOME_DONE, points=points), 5.0)


def test_an_outcome_that_is_none_is_refused() -> None:
    with pytest.raises(wire.Malformed, match="OUTCOME_DONE, OUTCOME_FAILED, OUTCOME_BUSY"):
        wire.outcome(pb.CommandDone(), 5.0)


def test_a_slow_gpu_lies_on_a_node_that_there_is() -> None:
    slow = wire.slow_gpu(JobKey(7), pb.SlowGpu(node="n2", gpus=[3, 1, 3], ratio=1.7), NODES)
    assert (slow.node, slow.gpus, slow.ratio) == ("n2", (1, 3), 1.7)
    for wrong in (pb.SlowGpu(node="n9"), pb.SlowGpu(node="n1", ratio=-1), pb.SlowGpu(node="n1", gpus=[5000])):
        with pytest.raises(wire.Malformed):
            wire.slow_gpu(JobKey(7), wrong, NODES)


def use(**changes: object) -> pb.Report:
    said: dict[str, object] = {
        "wants_pool": True, "bytes": 10, "iteration_s": 0.5, "nodes": 3, "version": 2, "iterations": 9,
        "used": [pb.UsedAggregator(host="c1", port=7000, share=2)],
    }  # fmt: skip
    return pb.Report(aggregation=pb.AggregationUse(**{**said, **changes}))


def test_a_report_says_how_aggregators_sum() -> None:
    said = wire.leader_report(wire.introduction(hello()), Principal("1"), use(), NODES).aggregation
    used = (UsedAggregator("c1:7000", 2),)
    assert said == AggregationUse(True, 10, 0.5, 3, 2, 9, reserves=3, used=used)
    reserving = wire.introduction(hello(reserves=2))
    said = wire.leader_report(reserving, Principal("1"), use(), NODES).aggregation
    assert said is not None
    assert said.reserves == 2


def test_a_report_says_how_many_aggregators_in_satellites_are_asked_for_and_lists_them() -> None:
    size = wire.introduction(hello()).workers.max
    told = use(satellites=size)
    told.satellites.append(satellite(workers=0))
    said = wire.leader_report(wire.introduction(hello()), Principal("1"), told, NODES)
    assert said.aggregation is not None
    assert said.aggregation.satellites == size
    assert [each.workers for each in said.satellites] == [0]
    with pytest.raises(wire.Malformed, match=r"aggregation\.satellites"):
        wire.leader_report(wire.introduction(hello()), Principal("1"), use(satellites=size + 1), NODES)


def test_a_report_says_that_the_user_leaves_the_choice_to_flexod() -> None:
    size = wire.introduction(hello()).workers.max
    told = use(auto=True, most_satellites=size, busy=0.4)
    told.satellites.append(satellite(workers=0))
    said = wire.leader_report(wire.introduction(hello()), Principal("1"), told, NODES).aggregation
    assert said is not None
    assert (said.auto, said.most_satellites, said.busy, said.placement) == (True, size, 0.4, None)


def test_a_report_of_an_older_leader_or_another_core_says_nothing_of_aggregators() -> None:
    assert (
        wire.leader_report(wire.introduction(hello()), Principal("1"), pb.Report(), NODES).aggregation is None
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"bytes": 1 << 60}, "aggregation.bytes"),
        ({"iteration_s": -1.0}, "aggregation.iteration_s"),
        ({"iteration_s": float("inf")}, "aggregation.iteration_s"),
        ({"nodes": 1_000_000}, "aggregation.nodes"),
        ({"most_satellites": 9}, "aggregation.most_satellites"),
        ({"busy": -0.1}, "aggregation.busy"),
        ({"version": 4_000_000_000}, "aggregation.version"),
        ({"iterations": (1 << 64) - 1}, "aggregation.iterations"),
        ({"used": [pb.UsedAggregator(host="a b", port=1, share=1)]}, "used.host"),
        ({"used": [pb.UsedAggregator(host="c1", port=0, share=1)]}, "used.port"),
        ({"used": [pb.UsedAggregator(host="c1", port=1, share=0)]}, "used.share"),
        ({"used": [pb.UsedAggregator(host="c1", port=1, share=1)] * 2}, "twice"),
        ({"used": [pb.UsedAggregator(host="c1", port=1, share=1)] * 2000}, "2000"),
    ],
)
def test_an_impossible_use_of_aggregators_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(wire.Malformed, match=named):
        wire.leader_report(wire.introduction(hello()), Principal("1"), use(**changes), NODES)


def test_assigned_aggregators_are_told_with_every_field_and_none_is_still_a_message() -> None:
    told = wire.to_leader(AggregatorOffers(3, (AggregatorOffer("c1", 7000, "token", 2),)))
    assert told.aggregators == pb.Aggregators(
        version=3, aggregators=[pb.AssignedAggregator(host="c1", port=7000, token="token", share=2)]
    )
    assert wire.to_leader(AggregatorOffers(4)).WhichOneof("body") == "aggregators"


def test_trials_of_several_batches_are_believed_within_bounds() -> None:
    job = wire.introduction(hello(script="0a" * 32))
    times = [pb.BatchTime(samples=32, step_s=0.1, steps=8), pb.BatchTime(samples=64, step_s=0.2, steps=8)]
    tried = pb.TriedBatches(weights=9, largest=64, times=times, worker_s=2.5)
    report = wire.leader_report(job, 1, pb.Report(tried=tried), NODES)
    assert report.script == "0a" * 32
    assert report.tried == TriedBatches(9, 64, (BatchTime(32, 0.1, 8), BatchTime(64, 0.2, 8)), 2.5)
    assert wire.leader_report(job, 1, pb.Report(), NODES).tried is None


@pytest.mark.parametrize(
    ("tried", "named"),
    [
        ({"times": [pb.BatchTime(samples=number, step_s=1) for number in range(1, 66)]}, "at most 64"),
        ({"times": [pb.BatchTime(samples=0, step_s=1)]}, "samples is 0"),
        ({"times": [pb.BatchTime(samples=1, step_s=0)]}, "step_s is 0"),
        ({"times": [pb.BatchTime(samples=1, step_s=float("nan"))]}, "step_s"),
        ({"times": [pb.BatchTime(samples=2, step_s=1), pb.BatchTime(samples=1, step_s=1)]}, "ascend"),
        ({"worker_s": -1.0}, "worker_s"),
        ({"weights": 1 << 60}, "weights"),
        ({"largest": 2_000_000_000}, "largest"),
    ],
)
def test_trials_that_cannot_be_are_refused(tried: dict[str, object], named: str) -> None:
    said = pb.Report(tried=pb.TriedBatches(**tried))
    with pytest.raises(wire.Malformed, match=named):
        wire.leader_report(wire.introduction(hello()), 1, said, NODES)


def test_a_digest_of_other_letters_is_refused() -> None:
    with pytest.raises(wire.Malformed, match="script"):
        wire.introduction(hello(script="train.py"))
