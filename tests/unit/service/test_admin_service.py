"""Who may read and who may scale, and how the controller's answers reach the wire."""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import grpc.aio
import pytest
import structlog
from flat_records import make_job, make_node
from hypothesis import given, settings
from hypothesis import strategies as st
from says import says
from service_doubles import Client, served_admin
from thorough import examples

from flexo.clusters.base import ClusterState
from flexo.control.explanations import Headline
from flexo.control.scale_overrides import BadScale, Busy, NotSteered
from flexo.control.views import ControllerStatus, JobView, ReasonEvents, TimeLeft, UnknownJob, View
from flexo.event_store.job_owners import JobOwner
from flexo.event_store.search import Search
from flexo.event_store.store import EventStore, Found
from flexo.events import KINDS, Event
from flexo.model.aggregation import AggregationUse
from flexo.model.elastic import AggregatorGrants, ElasticJob, Grant, SatelliteState
from flexo.model.loans import Demand
from flexo.model.measured import ScalingPoint, SlowGpu, Source
from flexo.model.plans import Note
from flexo.model.queue import ElasticRequest, JobKey, JobState, Principal, WaitReason
from flexo.model.ranges import Range
from flexo.service import admin_service
from flexo.service.admin_service import AdminService, event_message
from flexo.service.authentication import account
from flexo.service.budgets import STANDARD, Budgets
from flexo.service.leader_registry import LeaderBusy, NoLeader
from flexo.service.pending_commands import (
    CheckpointOrder,
    CommandOutcome,
    Order,
    PendingCommand,
    ProfileOrder,
    Progress,
    Result,
)
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.resources import Resources, of_message
from flexo_protos.v1 import admin_pb2 as pb

OWNER, STRANGER, ADMINISTRATOR = 61_000, 61_001, pwd.getpwnam("games").pw_uid


POINT = ScalingPoint(2, 90.0, 0.1, 0.01, 1.0, 20, 5.0)


class Answers:
    """The controller's and the event store's place: one running job, 7, and one that has ended, 6."""

    def __init__(self) -> None:
        self.scaled: list[tuple[JobKey, int | None]] = []
        self.steered: list[tuple[object, ...]] = []
        self.noted: list[str] = []
        self.refusal: Exception | None = None
        self.words: list[Progress | CommandOutcome] = []
        self.given_up: list[PendingCommand] = []

    # The leader's line, which says `words` to whatever it is told to do; nothing more after them.

    def connection_of(self, key: JobKey) -> Answers:
        if self.refusal:
            raise self.refusal
        return self

    def begin(self, order: Order) -> PendingCommand:
        self.steered.append((order,))
        pending = PendingCommand(order)
        for word in self.words:
            pending.hear(word)
        return pending

    def give_up(self, pending: PendingCommand) -> None:
        self.given_up.append(pending)

    # The controller.

    def _steer(self, *what: object) -> str:
        if self.refusal:
            raise self.refusal
        self.steered.append(what)
        return "so be it"

    def scale_out(self, key: JobKey, workers: int, nodes: tuple[str, ...], by: str) -> str:
        return self._steer("out", key, workers, nodes, by)

    def scale_in(self, key: JobKey, workers: int, nodes: tuple[str, ...], by: str) -> str:
        return self._steer("in", key, workers, nodes, by)

    def resizable(self, key: JobKey) -> None:
        if self.refusal:
            raise self.refusal

    def headline(self, job_id: int) -> Headline:
        return Headline("4 of 2-8 workers: no idle a100", "no idle a100")

    def profiled(self, key: JobKey, points: tuple[ScalingPoint, ...]) -> None:
        self.steered.append(("profiled", key, points))

    def note(self, kind: str, key: JobKey, text: str) -> None:
        self.noted.append(f"{kind} {key}: {text}")

    def status(self) -> ControllerStatus:
        return ControllerStatus(
            1.0, "lab", "22.05.8", "Slurm", "greedy", True, 5.0, 2.0, 0.1, ("slow",), 4, 16, 3, 5, 2, 1,
            (SlowGpu("n3", (2,), 1.8, JobKey(7), 3.0, 9.0),),
        )  # fmt: skip

    def jobs(self) -> tuple[JobView, ...]:
        grant = Grant("g1", JobKey(7, 1), "n2", 3, "flex", 9.0, SatelliteState.WARMING, 8)
        job = ElasticJob(
            JobKey(7, 1), "ann", Range(2, 8), Resources(2, 1), ("n1",), 2, (grant,), 4, True, wanted=6
        )
        sums = Grant("a1", JobKey(7, 1), "c1", 0, "flex", 9.0, SatelliteState.TRAINING, 9)
        waits = Grant("a2", JobKey(7, 1), "c2", 0, "flex", 9.0)
        use = AggregationUse(False, 0, 0.0, 1, 1, 0, 1, satellites=2)
        job = replace(job, aggregation=use, aggregators=AggregatorGrants((sums, waits)))
        left = TimeLeft(60.0, Source.PROGRESS)
        return (JobView(job, Principal(str(OWNER)), True, 99, (POINT,), 64, 0.5, left),)

    def view(self) -> View:
        node = make_node(
            "n2", 4, 3, 8, 3, 8000, 0, frozenset({"train", "flex"}), "a100", unusable="DOWN: fan"
        )
        jobs = tuple(
            make_job(
                job_id=number, owner=Principal("9"), user="eve", partitions=("train",),
                state=JobState.PENDING, wait=WaitReason.RESOURCES, reason="Resources", priority=1,
                submitted_at=1.5, started_at=starts, time_limit_s=None, nodes=(), num_nodes=1, elastic=asked,
            )
            for number, starts, asked in ((9, 60.0, ElasticRequest(Range(2, 6))), (10, None, None))
        )  # fmt: skip
        state = ClusterState(2.0, (node,), (), jobs, 0.1)
        notes = (
            Note(JobKey(7, 1), "it rests"),
            Note(JobKey(8), "another's"),
            Note(JobKey(7, 1), "n3 is kept"),
        )
        told = ReasonEvents({JobKey(7, 1): 12, JobKey(9): 13}, {JobKey(7, 1): 14}, {"n2": 15})
        return View(state, self.jobs(), notes, order=(JobKey(9), JobKey(5)), told=told)

    def explain(self, job_id: int) -> tuple[str, ...]:
        if job_id != 7:
            raise UnknownJob(f"no elastic job {job_id} runs")
        return ("4 of 8 workers: no idle a100", "all idle GPUs are taken")

    def scale(self, key: JobKey, workers: int | None, by: str) -> str:
        if workers == 99:
            raise BadScale("job 7 takes 2-8 workers")
        self.scaled.append((key, workers, by))
        return "so be it"

    def demand(self, since: float, step_s: float) -> tuple[Demand, ...]:
        self.steered.append(("demand", since, step_s))
        return (Demand(100.0, 2.5, "partition infer"), Demand(400.0, 3.0, "partition infer"))

    def find(self, search: Search) -> Found:
        self.steered.append(search)
        if search.job_id is not None:
            return Found(tuple(enumerate(self._events_of(search.job_id), start=40)))
        grown = Event(5.0, "grow", JobKey(6, 1), "3 workers")
        events = ((12, Event(6.0, "lend", None, "n3 is lent")), (11, grown))
        return Found(events, 11, 40)

    def _events_of(self, job_id: int) -> tuple[Event, ...]:
        grown = Event(5.0, "grow", JobKey(job_id, 2), "3 workers")
        ended = Event(9.0, "end", JobKey(4, 2), "the job ended: TIMEOUT")
        return {6: (Event(5.0, "grow", JobKey(6), "3 workers"),), 4: (ended, grown)}.get(job_id, ())

    def facts_of(self, numbers: Sequence[int]) -> dict[int, str]:
        assert tuple(numbers) == (40,)
        facts = '{"state":"TIMEOUT","exit_code":"0:0","started_at":null,"ended_at":8.5,"base_workers":2}'
        return {40: facts}

    def owner_of(self, job_id: int) -> JobOwner | None:
        return JobOwner(4, Principal(str(OWNER)), "ann") if job_id == 4 else None


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def client(answers: Answers) -> Iterator[Client]:
    with served(answers, STANDARD) as made:
        yield made


def served(answers: Answers, budgets: Budgets) -> AbstractContextManager[Client]:
    return served_admin(
        AdminService(answers, answers, answers, ("games",), budgets=budgets),  # type: ignore[arg-type]
        budgets,
    )


def test_anybody_authenticated_may_read_status(client: Client) -> None:
    reply = client.call("GetStatus", pb.GetStatusRequest())
    assert (reply.cluster, reply.gpus_idle, reply.trouble, reply.dry_run) == ("lab", 3, "slow", True)
    assert [(gpu.node, list(gpu.gpus), gpu.job_id) for gpu in reply.slow_gpus] == [("n3", [2], 7)]


def test_jobs_carry_their_grants_and_cap(client: Client) -> None:
    (job,) = client.call("ListJobs", pb.ListJobsRequest()).jobs
    assert (job.job_id, job.restart_count, job.user, job.workers, job.granted) == (7, 1, "ann", 4, 5)
    assert (job.wanted, job.gpus_per_worker, job.batches_committed, job.attached) == (6, 2, 99, True)
    assert of_message(job.worker).gpus == 2
    assert (job.grants[0].state, job.grants[0].slurm_job_id) == ("warming", 8)
    assert (job.scaling[0].workers, job.scaling[0].samples_per_s, job.batch) == (2, 90.0, 64)
    assert (job.progress, job.left_s, job.left_by) == (0.5, 60.0, "progress")
    assert list(job.reasons) == ["it rests", "n3 is kept"]


def test_jobs_carry_the_grants_of_their_aggregators_apart(client: Client) -> None:
    (job,) = client.call("ListJobs", pb.ListJobsRequest()).jobs
    assert [grant.node for grant in job.grants] == ["n2"]
    told = [(grant.node, grant.workers, grant.state) for grant in job.aggregation.grants]
    assert told == [("c1", 0, "training"), ("c2", 0, "granted")]
    assert job.aggregation.satellites == 1


def test_elastic_jobs_that_wait_are_listed_with_range_reason_and_planned_start(client: Client) -> None:
    (job,) = client.call("ListJobs", pb.ListJobsRequest()).waiting
    assert (job.job_id, job.user, job.min, job.max, job.reason) == (9, "eve", 2, 6, "Resources")
    assert (job.submitted_at, job.starts_at, job.waits_for) == (1.5, 60.0, "for resources")
    assert job.place == 1


def test_an_event_carries_the_grant_that_it_begins_or_ends() -> None:
    begins = event_message(Event(5.0, "grow", JobKey(6), "grow by 3 workers on n2: n2 is idle"))
    assert (begins.grant.node, begins.grant.workers, begins.grant.begins) == ("n2", 3, True)
    ends = event_message(Event(6.0, "lost", JobKey(6), "satellite 8 with 3 workers has left n2, unasked"))
    assert (ends.grant.node, ends.grant.workers, ends.grant.begins) == ("n2", 3, False)
    assert not event_message(Event(7.0, "scale", JobKey(6), "capped at 4")).HasField("grant")


def test_reasons_of_jobs_and_nodes_have_the_numbers_of_their_events(client: Client) -> None:
    jobs = client.call("ListJobs", pb.ListJobsRequest())
    (running,), (waiting,) = jobs.jobs, jobs.waiting
    (node,) = client.call("ListNodes", pb.ListNodesRequest()).nodes
    events = running.reason_event, running.silent_event, waiting.reason_event, node.idle_event
    assert events == (12, 14, 13, 15)


def test_anybody_may_read_the_nodes_and_the_order_of_pending_jobs(client: Client) -> None:
    reply = client.call("ListNodes", pb.ListNodesRequest())
    (node,) = reply.nodes
    assert (node.name, node.gpus, node.gpus_allocated, node.gpu_type) == ("n2", 4, 3, "a100")
    assert of_message(node.capacity) == Resources(4, 8, 8000, "a100")
    assert of_message(node.allocated).gpus == 3
    assert (node.unusable, list(node.partitions)) == ("DOWN: fan", ["flex", "train"])
    assert list(reply.order) == [9, 5]


def test_anybody_may_read_events_of_all_jobs_and_is_told_where_to_go_on(
    client: Client, answers: Answers
) -> None:
    asked = pb.ListEventsRequest(node="n3", kinds=["lend", "grow"], since_at=4.0, before=50, after=3, limit=9)
    reply = client.call("ListEvents", asked)
    assert [(each.number, each.kind, each.job_id, each.restart_count) for each in reply.events] == [
        (12, "lend", 0, 0),
        (11, "grow", 6, 1),
    ]
    assert (reply.before, reply.newest) == (11, 40)
    assert answers.steered == [Search(None, "n3", ("lend", "grow"), 4.0, 50, 3, 9)]


def test_one_answer_holds_so_many_events_and_no_more(client: Client, answers: Answers) -> None:
    client.call("ListEvents", pb.ListEventsRequest(job_id=6, limit=1_000_000))
    client.call("ListEvents", pb.ListEventsRequest(job_id=6))
    assert [(asked.job_id, asked.limit) for asked in answers.steered] == [(6, 1000), (6, 200)]


def test_a_kind_that_is_asked_for_often_is_looked_for_once(client: Client, answers: Answers) -> None:
    client.call("ListEvents", pb.ListEventsRequest(kinds=["grow"] * 100_000))
    assert answers.steered[0].kinds == ("grow",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kinds": ["grow", "grew\x1b"]}, "no events of kind 'grew"),
        ({"since_at": float("nan")}, "since_at nan"),
        ({"before": 1 << 63}, "too far"),
    ],
)
def test_a_search_for_what_cannot_be_is_refused_with_what_can(
    client: Client, wrong: dict[str, object], words: str
) -> None:
    code, text = client.refused("ListEvents", pb.ListEventsRequest(**wrong))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in text
    assert text.isprintable()


@pytest.fixture
def limited(answers: Answers) -> Iterator[Client]:
    """A service with small limits."""
    budgets = Budgets(steering_burst=3, steering_per_s=0.001, job_steering_burst=5, job_steering_per_s=0.001)
    with served(answers, budgets) as made:
        yield made


def test_a_user_who_scales_in_a_loop_is_refused_with_the_rate_and_administrators_are_not(
    limited: Client, answers: Answers
) -> None:
    request = pb.ScaleJobRequest(job_id=7, workers=4)
    for _ in range(3):
        limited.call("ScaleJob", request, OWNER)
    code, text = limited.refused("ScaleJob", request, OWNER)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"uid {OWNER}" in text
    assert "0.001" in text
    limited.call("ScaleJob", request, ADMINISTRATOR)
    assert len(answers.scaled) == 4


def test_one_job_is_steered_so_often_whoever_does_it(answers: Answers) -> None:
    request = pb.ScaleJobRequest(job_id=7, workers=4)
    with served(answers, Budgets(job_steering_burst=5, job_steering_per_s=0.001)) as limited:
        for uid in (ADMINISTRATOR, OWNER):  # neither uses up what the other may
            for _ in range(5):
                limited.call("ScaleJob", request, uid)
            code, text = limited.refused("ScaleJob", request, uid)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "job 7" in text


def test_an_owner_who_scales_in_a_loop_keeps_no_administrator_from_steering(answers: Answers) -> None:
    request = pb.ScaleJobRequest(job_id=7, workers=4)
    with served(answers, Budgets(job_steering_burst=5, job_steering_per_s=0.001)) as limited:
        for _ in range(5):
            limited.call("ScaleJob", request, OWNER)
        assert limited.refused("ScaleJob", request, OWNER)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        limited.call("ScaleJob", request, ADMINISTRATOR)


def test_calls_that_steer_others_jobs_count_and_the_log_names_some_of_them(limited: Client) -> None:
    request = pb.ScaleJobRequest(job_id=7, workers=4)
    with structlog.testing.capture_logs() as logged:
        codes = [limited.refused("ScaleJob", request, STRANGER)[0] for _ in range(40)]
    assert codes[:3] == [grpc.StatusCode.PERMISSION_DENIED] * 3
    assert set(codes[3:]) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len([connection for connection in logged if connection["log_level"] == "warning"]) < 30


def test_a_picture_of_the_cluster_is_made_once_for_all_who_ask(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = answers.view()
    made = []
    monkeypatch.setattr(answers, "view", lambda: view)
    monkeypatch.setattr(
        admin_service, "node_view", lambda node, _: made.append(node) or pb.NodeView(name=node.name)
    )
    with ThreadPoolExecutor(8) as callers:
        replies = list(callers.map(lambda _: client.call("ListNodes", pb.ListNodesRequest()), range(200)))
    assert [node.name for node in replies[-1].nodes] == ["n2"]
    assert len(made) == 1


@settings(max_examples=examples(30))
@given(
    at=st.floats(allow_nan=False),
    job=st.none() | st.builds(JobKey, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)),
    kind=st.sampled_from(sorted(KINDS)),
    text=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_whatever_the_store_holds_can_be_listed(at: float, job: JobKey | None, kind: str, text: str) -> None:
    with TemporaryDirectory() as folder:
        event_store = EventStore(Path(folder) / "journal.sqlite", 36_500)
        event_store.record(0.0, (Event(at, kind, job, text), Event(1.0, "grow", JobKey(6), "3 workers")))
        found = event_store.find(Search(routine=True)).events
        event_store.close()
    listed = [
        pb.Event.FromString(event_message(event, number).SerializeToString()) for number, event in found
    ]
    assert [(each.at, each.kind, each.text) for each in listed] == [
        (1.0, "grow", "3 workers"),
        (at, kind, text),
    ]
    assert listed[0].job_id == 6


def test_the_event_of_a_job_s_end_has_what_is_known_of_the_end(client: Client) -> None:
    ended, grown = client.call("ListEvents", pb.ListEventsRequest(job_id=4)).events
    assert (ended.end.state, ended.end.base_workers, ended.end.restart_count) == ("TIMEOUT", 2, 2)
    assert not grown.HasField("end")


def test_facts_of_an_end_that_only_a_newer_flexod_knows_are_left_out(
    client: Client, answers: Answers
) -> None:
    answers.facts_of = lambda numbers: dict.fromkeys(numbers, '{"state":"FAILED","of_a_later_release":[1]}')
    assert client.call("ExplainJob", pb.ExplainJobRequest(job_id=4)).end.state == "FAILED"


def test_a_page_with_a_job_id_that_no_cluster_has_can_be_read(client: Client, answers: Answers) -> None:
    forged = Event(
        6.0, "cancel", JobKey(99_999_999_999_999_999_999), "satellite 5 of job 99999999999999999999"
    )
    answers.find = lambda search: Found(((2, forged), (1, Event(5.0, "grow", JobKey(6), "3 workers"))))
    reply = client.call("ListEvents", pb.ListEventsRequest())
    assert [(each.job_id, each.number) for each in reply.events] == [(0, 2), (6, 1)]
    assert "99999999999999999999" in reply.events[0].text


def test_an_event_of_a_job_on_yarn_names_it(client: Client, answers: Answers) -> None:
    job = JobKey(1_795_625_206_213_000_002)
    answers.find = lambda search: Found(((1, Event(5.0, "grow", job, "3 workers")),))
    assert client.call("ListEvents", pb.ListEventsRequest()).events[0].job_id == job.job_id


def test_anybody_may_read_what_inference_needed(client: Client, answers: Answers) -> None:
    reply = client.call("ListDemand", pb.ListDemandRequest(since_at=50.0))
    assert [(sample.at, sample.servers) for sample in reply.samples] == [(100.0, 2.5), (400.0, 3.0)]
    assert reply.samples[0].source == "partition infer"
    assert answers.steered == [("demand", 50.0, 300.0)]


@pytest.mark.parametrize("wrong", [{"step_s": -1.0}, {"step_s": float("nan")}, {"since_at": float("inf")}])
def test_a_history_of_demand_in_steps_that_are_none_is_refused(
    client: Client, wrong: dict[str, float]
) -> None:
    code, text = client.refused("ListDemand", pb.ListDemandRequest(**wrong))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "steps from 1 s" in text


def test_nobody_reads_without_a_credential(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client._stub.GetStatus(pb.GetStatusRequest(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("uid", [OWNER, 0, os.getuid(), ADMINISTRATOR])
def test_owner_root_flexods_account_and_administrators_may_scale(
    client: Client, answers: Answers, uid: int
) -> None:
    reply = client.call("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=4), uid)
    assert reply.text == "so be it"
    assert answers.scaled == [(JobKey(7, 1), 4, account(uid))]


def test_zero_workers_mean_automatic(client: Client, answers: Answers) -> None:
    client.call("ScaleJob", pb.ScaleJobRequest(job_id=7), OWNER)
    assert answers.scaled == [(JobKey(7, 1), None, account(OWNER))]


def test_a_stranger_may_not_scale_and_is_told_who_may(
    client: Client, answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = client.refused("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=4), STRANGER)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert all(name in text for name in ("ann", "root", "games", str(STRANGER)))
    assert answers.scaled == []
    assert "steering denied" in capsys.readouterr().out


def test_scaling_a_job_that_is_not_there_is_not_found(client: Client) -> None:
    code, text = client.refused("ScaleJob", pb.ScaleJobRequest(job_id=8), 0)
    assert code is grpc.StatusCode.NOT_FOUND
    assert "8" in text


def test_scaling_out_of_the_range_is_refused_with_the_range(client: Client) -> None:
    code, text = client.refused("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=99), 0)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "2-8" in text


def test_a_running_job_is_explained_and_its_headline_is_not_said_again(client: Client) -> None:
    reply = client.call("ExplainJob", pb.ExplainJobRequest(job_id=7))
    assert (reply.headline, reply.reason) == ("4 of 2-8 workers: no idle a100", "no idle a100")
    assert list(reply.sentences) == ["all idle GPUs are taken"]


def test_a_job_that_has_ended_still_has_its_events(client: Client) -> None:
    reply = client.call("ExplainJob", pb.ExplainJobRequest(job_id=6))
    assert (reply.events[0].kind, reply.events[0].text) == ("grow", "3 workers")
    assert list(reply.sentences) == ["no elastic job 6 runs"]


def test_a_job_that_has_ended_is_explained_by_its_end(client: Client) -> None:
    reply = client.call("ExplainJob", pb.ExplainJobRequest(job_id=4))
    assert list(reply.sentences) == ["the job ended: TIMEOUT"]
    assert (reply.end.state, reply.end.exit_code, reply.end.restart_count) == ("TIMEOUT", "0:0", 2)
    assert (reply.end.started_at, reply.end.ended_at, reply.end.base_workers) == (0, 8.5, 2)
    assert [event.kind for event in reply.events] == ["end", "grow"]
    assert not client.call("ExplainJob", pb.ExplainJobRequest(job_id=7)).HasField("end")


def test_a_job_that_never_was_is_not_found(client: Client) -> None:
    code, _ = client.refused("ExplainJob", pb.ExplainJobRequest(job_id=5))
    assert code is grpc.StatusCode.NOT_FOUND


STEERING = [
    ("ScaleOut", pb.ScaleOutRequest(job_id=7, workers=2)),
    ("ScaleIn", pb.ScaleInRequest(job_id=7, workers=2)),
    ("ProfileJob", pb.ProfileJobRequest(job_id=7, min=1, max=4)),
    ("CheckpointJob", pb.CheckpointJobRequest(job_id=7, path="/a/b")),
]


@pytest.mark.parametrize(("method", "request_"), STEERING)
def test_steering_is_for_the_owner_and_of_jobs_that_there_are(
    client: Client, answers: Answers, method: str, request_: object
) -> None:
    code, text = client.refused(method, request_, STRANGER)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "ann" in text
    request_.job_id = 8  # type: ignore[attr-defined]
    code, _ = client.refused(method, request_, 0)
    request_.job_id = 7  # type: ignore[attr-defined]
    assert code is grpc.StatusCode.NOT_FOUND
    assert answers.steered == []


@pytest.mark.parametrize(("method", "request_"), STEERING)
def test_steering_needs_a_credential(client: Client, method: str, request_: object) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(getattr(client._stub, method)(request_, timeout=60) or ())
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_scaling_out_and_in_pass_the_numbers_on(client: Client, answers: Answers) -> None:
    client.call("ScaleOut", pb.ScaleOutRequest(job_id=7, workers=2), OWNER)
    named = client.call("ScaleOut", pb.ScaleOutRequest(job_id=7, workers=1, nodes=["n3"]), OWNER)
    assert named.nodes == ["n3"], "who asks can tell that nodes count"
    client.call("ScaleIn", pb.ScaleInRequest(job_id=7, workers=1), OWNER)
    client.call("ScaleIn", pb.ScaleInRequest(job_id=7, node="n2"), OWNER)
    client.call("ScaleIn", pb.ScaleInRequest(job_id=7, node="n2", nodes=["n4"]), OWNER)
    key, by = JobKey(7, 1), account(OWNER)
    assert answers.steered == [
        ("out", key, 2, (), by), ("out", key, 1, ("n3",), by), ("in", key, 1, (), by),
        ("in", key, 0, ("n2",), by), ("in", key, 0, ("n2", "n4"), by),
    ]  # fmt: skip


def test_scaling_in_takes_a_number_or_a_node(client: Client) -> None:
    for request in (pb.ScaleInRequest(job_id=7), pb.ScaleInRequest(job_id=7, workers=1, node="n2")):
        assert client.refused("ScaleIn", request, OWNER)[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Busy("being resized: try again later"), grpc.StatusCode.ABORTED),
        (NotSteered("no leader attached"), grpc.StatusCode.FAILED_PRECONDITION),
        (BadScale("1 to 4 more are allowed"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_the_controller_refuses_keeps_its_sentence_and_says_whether_to_try_again(
    client: Client, answers: Answers, refusal: Exception, code: grpc.StatusCode
) -> None:
    answers.refusal = refusal
    for method, request in STEERING[:3]:
        assert client.refused(method, request, OWNER) == (code, str(refusal))


def test_a_profile_tells_how_it_goes_and_is_kept(client: Client, answers: Answers) -> None:
    answers.words = [
        Progress("begins"),
        Progress("", (POINT,)),
        CommandOutcome(Result.DONE, "none left out", (POINT,)),
    ]
    replies = client.stream("ProfileJob", pb.ProfileJobRequest(job_id=7, min=1, max=4, batches=9), OWNER)
    assert [(reply.text, len(reply.points), reply.done) for reply in replies] == [
        ("begins", 0, False), ("", 1, False), ("none left out", 1, True),
    ]  # fmt: skip
    assert replies[-1].points[0].efficiency == 1.0
    assert answers.steered == [
        (ProfileOrder(Range(1, 4), 9),), ("profiled", JobKey(7, 1), (POINT,)),
    ]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), [(0, 4), (5, 4), (0, 0)])
def test_a_profile_of_no_range_is_refused(client: Client, low: int, high: int) -> None:
    request = pb.ProfileJobRequest(job_id=7, min=low, max=high)
    assert client.refused("ProfileJob", request, OWNER)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_profile_whose_caller_hangs_up_is_given_up(client: Client, answers: Answers) -> None:
    answers.words = [Progress("begins")]
    request = pb.ProfileJobRequest(job_id=7, min=1, max=4)
    metadata = ((METADATA_KEY, f"{OWNER} /flexo.v1.AdminService/ProfileJob#x"),)
    call = client._stub.ProfileJob(request, metadata=metadata, timeout=60)
    assert next(call).text == "begins"
    call.cancel()
    deadline = time.monotonic() + 60
    while not answers.given_up:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_checkpoint_answers_when_it_is_written_and_is_noted(client: Client, answers: Answers) -> None:
    answers.words = [CommandOutcome(Result.DONE, "written to /a/b on n1")]
    reply = client.call("CheckpointJob", pb.CheckpointJobRequest(job_id=7, path="/a/b"), OWNER)
    assert reply.text == answers.words[0].text
    assert answers.steered == [(CheckpointOrder("/a/b"),)]
    [note] = answers.noted
    assert says(note, "checkpoint", "7.r1", "/a/b", "n1")


@pytest.mark.parametrize("path", ["", "model.pt", "/a\n/b", "/" + "a" * 5000])
def test_a_checkpoint_needs_an_absolute_path(client: Client, answers: Answers, path: str) -> None:
    request = pb.CheckpointJobRequest(job_id=7, path=path)
    assert client.refused("CheckpointJob", request, OWNER)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert answers.steered == []


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (Result.FAILED, grpc.StatusCode.FAILED_PRECONDITION),
        (Result.BUSY, grpc.StatusCode.ABORTED),
        (Result.LOST, grpc.StatusCode.ABORTED),
    ],
)
def test_what_the_leader_could_not_do_is_an_error_in_its_words(
    client: Client, answers: Answers, result: Result, code: grpc.StatusCode
) -> None:
    why = "the disk is full"
    answers.words = [CommandOutcome(result, why)]
    for method, request in STEERING[2:]:
        assert client.refused(method, request, OWNER) == (code, f"job 7.r1: {why}")
    assert answers.noted == []


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (NoLeader("job 7 has no leader"), grpc.StatusCode.FAILED_PRECONDITION),
        (LeaderBusy("try again later"), grpc.StatusCode.ABORTED),
    ],
)
def test_without_a_leader_that_has_time_there_is_no_checkpoint(
    client: Client, answers: Answers, refusal: Exception, code: grpc.StatusCode
) -> None:
    answers.refusal = refusal
    request = pb.CheckpointJobRequest(job_id=7, path="/a/b")
    assert client.refused("CheckpointJob", request, OWNER) == (code, str(refusal))


def test_while_names_of_users_cannot_be_looked_up_all_others_are_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hanging(uid: int) -> str:
        asked.set()
        answered.wait(60)
        return "nobody we know"

    monkeypatch.setattr("flexo.service.admin_service.account", hanging)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.refused, "ScaleJob", pb.ScaleJobRequest(job_id=7, workers=4), STRANGER)
        try:
            assert asked.wait(60)
            assert client.call("GetStatus", pb.GetStatusRequest()).cluster == "lab"
        finally:
            answered.set()
        assert waiting.result()[0] is grpc.StatusCode.PERMISSION_DENIED
