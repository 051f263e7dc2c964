"""Where the cluster hides jobs (Slurm's PrivateData), flexod tells a user of that user's own jobs only."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from flat_records import make_node
from says import says
from service_doubles import STRANGER, Client, served_admin, slurm_job

from flexo.clusters.base import ClusterState, Privacy
from flexo.control.explanations import Headline, explain, headline
from flexo.control.job_owners import JobOwners
from flexo.control.views import ControllerStatus, JobView, View
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.elastic import ElasticJob
from flexo.model.measured import SlowGpu
from flexo.model.plans import Note
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob, WaitReason
from flexo.model.ranges import Range
from flexo.service.admin_service import AdminService
from flexo_protos.resources import Resources
from flexo_protos.v1 import admin_pb2 as pb

ADA, BOB = 61_010, 61_011
ADMINISTRATOR, READER = (pwd.getpwnam(name).pw_uid for name in ("games", "news"))
SLURM_USER = 61_012
HIDDEN = Privacy(jobs=True, readers=frozenset({Principal(str(SLURM_USER))}))
OPEN = Privacy()


def _running(job_id: int, uid: int, user: str) -> tuple[QueuedJob, JobView]:
    queued = slurm_job(job_id, Principal(str(uid)), user=user)
    job = ElasticJob(JobKey(job_id), user, Range(2, 8), Resources(1, 1), ("n1",), 2, (), 2, True)
    return queued, JobView(job, queued.owner, True, 9)


class Cluster:
    """The controller's place: 7 (ada's) and 8 (bob's) run; 17 and 18 of the same users wait. So does 27 of
    ada's, which is not elastic."""

    def __init__(self, privacy: Privacy | None) -> None:
        running = _running(7, ADA, "ada"), _running(8, BOB, "bob")
        waiting = tuple(
            replace(queued, job_id=queued.job_id + 10, state=JobState.PENDING, wait=WaitReason.RESOURCES)
            for queued, _ in running
        )
        rigid = replace(
            waiting[0], job_id=27, elastic=None, wait=WaitReason.TURN, reason="Priority", partitions=("p",)
        )
        queue = (*(queued for queued, _ in running), *waiting, rigid)
        nodes = (make_node("n1", 4, 2), make_node("n2", 4))
        state = None if privacy is None else ClusterState(5.0, nodes, (), queue, 0.1, privacy=privacy)
        notes = tuple(Note(JobKey(number), f"{number} rests") for number in (7, 8))
        views = tuple(view for _, view in running)
        self.queue = queue
        self._view = View(state, views, notes, order=(JobKey(18), JobKey(17)))

    def view(self) -> View:
        return self._view

    def jobs(self) -> tuple[JobView, ...]:
        return self._view.jobs

    def explain(self, job_id: int) -> tuple[str, ...]:
        return explain(job_id, self._view)

    def headline(self, job_id: int) -> Headline:
        return headline(job_id, self._view)

    def status(self) -> ControllerStatus:
        slow = tuple(SlowGpu("n1", (0,), 1.8, JobKey(number), 3.0, 9.0) for number in (7, 8))
        totals = (2, 8, 6, 0, 2, 2)
        return ControllerStatus(1.0, "lab", "", "Slurm", "lyra", False, 5.0, 2.0, 0.1, (), *totals, slow)

    def loans(self) -> None:
        return None

    @property
    def observation(self) -> ClusterState | None:
        return self._view.state


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    made = EventStore(tmp_path / "store.sqlite", 30.0)
    ended = (slurm_job(5, Principal(str(ADA)), user="ada"), slurm_job(6, Principal(str(BOB)), user="bob"))
    JobOwners(made).look((*Cluster(HIDDEN).queue, *ended), 1.0)
    happened = [Event(2.0, "grow", JobKey(number), f"{number} grows") for number in (4, 5, 6, 7, 8)]
    made.record(2.0, (*happened, Event(3.0, "lend", None, "n2 is lent")))
    yield made
    made.close()


@pytest.fixture(params=["hidden"])
def client(request: pytest.FixtureRequest, store: EventStore) -> Iterator[Client]:
    privacy = {"hidden": HIDDEN, "open": OPEN, "nodes": Privacy(nodes=True), "unknown": None}[request.param]
    cluster = Cluster(privacy)
    service = AdminService(cluster, store, cluster, ("games",), readers=("news",))  # type: ignore[arg-type]
    with served_admin(service) as made:
        yield made


def listed(client: Client, uid: int) -> tuple[list[int], list[int]]:
    reply = client.call("ListJobs", pb.ListJobsRequest(), uid)
    return [job.job_id for job in reply.jobs], [job.job_id for job in reply.waiting]


def events(client: Client, uid: int, **search: object) -> list[str]:
    return [event.text for event in client.call("ListEvents", pb.ListEventsRequest(**search), uid).events]


@pytest.mark.parametrize("client", ["nodes"], indirect=True)
def test_the_states_of_hidden_nodes_are_in_no_event(client: Client, store: EventStore) -> None:
    store.record(4.0, (Event(4.0, "node", None, "the idle GPUs of n2 stay idle: DOWN"),))
    assert len(events(client, READER, kinds=["node"])) == 1
    assert events(client, ADA, kinds=["node"]) == []
    assert len(events(client, ADA)) == 6


def test_a_user_is_told_of_own_jobs_alone(client: Client) -> None:
    assert listed(client, ADA) == ([7], [17])
    assert listed(client, BOB) == ([8], [18])
    assert listed(client, STRANGER) == ([], [])


@pytest.mark.parametrize("uid", [0, os.getuid(), ADMINISTRATOR, READER, SLURM_USER])
def test_root_flexods_account_administrators_readers_and_slurms_user_are_told_of_all(
    client: Client, uid: int
) -> None:
    assert listed(client, uid) == ([7, 8], [17, 18])
    assert len(events(client, uid)) == 6
    assert client.call("ExplainJob", pb.ExplainJobRequest(job_id=8), uid).user == "bob"


@pytest.mark.parametrize("uid", [ADA, READER])
def test_a_job_that_is_not_elastic_is_explained_with_its_owner(client: Client, uid: int) -> None:
    """flexo-web shows it to its owner alone, and a refusal names no owner."""
    reply = client.call("ExplainJob", pb.ExplainJobRequest(job_id=27), uid)
    assert reply.user == "ada"
    assert says(" ".join(reply.sentences), "job 27", "not elastic", "for its turn", "(Priority)")
    code, _ = client.refused("ExplainJob", pb.ExplainJobRequest(job_id=27), BOB)
    assert code is grpc.StatusCode.NOT_FOUND


def test_another_users_job_is_answered_exactly_like_one_that_there_is_not(client: Client) -> None:
    for other in (8, 18, 6):  # runs, waits, has ended
        missing = 900 + other
        code, text = client.refused("ExplainJob", pb.ExplainJobRequest(job_id=other), ADA)
        assert code is grpc.StatusCode.NOT_FOUND
        expected = client.refused("ExplainJob", pb.ExplainJobRequest(job_id=missing), ADA)[1]
        assert text == expected.replace(str(missing), str(other))
        assert events(client, ADA, job_id=other) == []
    for method, request in (("ScaleJob", pb.ScaleJobRequest), ("ScaleIn", pb.ScaleInRequest)):
        code, text = client.refused(method, request(job_id=8, workers=2), ADA)
        assert code is grpc.StatusCode.NOT_FOUND
        assert text == client.refused(method, request(job_id=908, workers=2), ADA)[1].replace("908", "8")


def test_ones_own_jobs_are_explained_while_they_run_wait_and_after_their_end(client: Client) -> None:
    for own in (7, 17, 5):
        reply = client.call("ExplainJob", pb.ExplainJobRequest(job_id=own), ADA)
        assert reply.user == "ada"
        assert reply.sentences
    assert events(client, ADA) == ["7 grows", "5 grows"]
    assert events(client, ADA, limit=1) == ["7 grows"]


def test_a_job_whose_owner_nobody_knows_any_more_is_hidden(client: Client) -> None:
    assert client.refused("ExplainJob", pb.ExplainJobRequest(job_id=4), ADA)[0] is grpc.StatusCode.NOT_FOUND
    assert events(client, ADA, job_id=4) == []
    assert events(client, READER, job_id=4) == ["4 grows"]


def test_the_status_and_the_order_name_own_jobs_alone(client: Client) -> None:
    status = client.call("GetStatus", pb.GetStatusRequest(), ADA)
    assert [gpu.job_id for gpu in status.slow_gpus] == [7]
    assert (status.gpus, status.elastic_jobs) == (8, 2)
    nodes = client.call("ListNodes", pb.ListNodesRequest(), ADA)
    assert list(nodes.order) == [17]
    assert [node.name for node in nodes.nodes] == ["n1", "n2"]


def test_a_caller_hears_what_is_hidden_and_only_readers_hear_who_sees_all(client: Client) -> None:
    told = client.call("GetStatus", pb.GetStatusRequest(), ADA).privacy
    assert (told.jobs, told.nodes, told.restricted, list(told.readers)) == (True, False, True, [])
    told = client.call("GetStatus", pb.GetStatusRequest(), READER).privacy
    assert (told.jobs, told.restricted) == (True, False)
    assert {"root", "games", "news", str(SLURM_USER)} <= set(told.readers)


@pytest.mark.parametrize("client", ["open"], indirect=True)
def test_where_the_cluster_hides_nothing_everybody_is_told_of_all(client: Client) -> None:
    assert listed(client, STRANGER) == ([7, 8], [17, 18])
    assert len(events(client, STRANGER)) == 6
    assert client.refused("ScaleJob", pb.ScaleJobRequest(job_id=8, workers=2), ADA)[0] is (
        grpc.StatusCode.PERMISSION_DENIED
    )
    assert client.call("GetStatus", pb.GetStatusRequest(), ADA).privacy == pb.Privacy()


@pytest.mark.parametrize("client", ["nodes"], indirect=True)
def test_where_the_cluster_hides_nodes_readers_alone_are_told_of_them(client: Client) -> None:
    assert not client.call("ListNodes", pb.ListNodesRequest(), ADA).nodes
    assert not client.call("GetStatus", pb.GetStatusRequest(), ADA).slow_gpus
    assert len(client.call("ListNodes", pb.ListNodesRequest(), READER).nodes) == 2
    assert listed(client, ADA) == ([7, 8], [17, 18])


@pytest.mark.parametrize("client", ["unknown"], indirect=True)
def test_as_long_as_the_cluster_has_not_answered_everything_counts_as_hidden(client: Client) -> None:
    assert events(client, BOB) == ["8 grows", "6 grows"]
    assert len(events(client, 0)) == 6
