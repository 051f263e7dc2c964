"""flexod's YARN cluster, over a pretended ResourceManager: one look, extensions, ends, refusals."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from test_read_applications import TAGS, application, container

from flexo.clusters.base import ActionRefused, Borrowed, ClusterUnreachable, MayNotAct, Priority, Site
from flexo.clusters.yarn import adapter, remembered
from flexo.clusters.yarn.adapter import YarnCluster
from flexo.clusters.yarn.settings import YarnSettings
from flexo.model.queue import JobKey, JobState
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.configuration import ClientConfiguration
from flexo_yarn.ipc.errors import RemoteError, Unreachable
from flexo_yarn.runs import priority_of

RM = (("rm1", 8032),)
CONFIGURATION = ClientConfiguration(
    RM, RM, RM, "file:///", kerberos=False, gpu_plugin=False, highest_priority=10_000
)


def gone() -> RemoteError:
    return RemoteError("rm1", "x.ApplicationNotFoundException", "there is no such application")


@dataclass
class Manager:
    """What the ResourceManager knows, and what it was told."""

    reports: list[pb.ApplicationReport] = field(default_factory=list)
    held: dict[int, list[pb.ContainerReport]] = field(default_factory=dict)
    pending: int = 0
    scheduler: str = "capacityScheduler"
    asked: list[dict[str, Any]] = field(default_factory=list)
    lifetimes: dict[str, str] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    most: int = 10_000
    label: str = ""
    """The label of node h2."""
    error: Exception | None = None
    away: set[str] = field(default_factory=set)
    """Nodes that have not come back since a restart of the ResourceManager."""

    def nodes(self, states: Collection[int]) -> list[pb.NodeReport]:
        if self.error is not None:
            raise self.error
        amount = records.resource(8192, 8, 4)
        return [
            pb.NodeReport(
                node_id=pb.NodeId(host=f"h{n}", port=1),
                state=pb.NS_RUNNING,
                capability=amount,
                labels=[self.label] if self.label and n == 2 else [],
            )
            for n in (1, 2)
            if f"h{n}" not in self.away
        ]

    def queues(self) -> pb.QueueInfo:
        waiting = pb.QueueStatistics(pending_containers=self.pending)
        children = [
            pb.QueueInfo(name="default", statistics=waiting),
            pb.QueueInfo(name="flex", statistics=waiting, accessible_node_labels=["inference"]),
            pb.QueueInfo(name="infer", maximum_capacity=0.0, accessible_node_labels=["inference"]),
        ]
        return pb.QueueInfo(name="root", children=children)

    def applications(self, states: Collection[int]) -> list[pb.ApplicationReport]:
        return self.reports

    def application(self, identifier: pb.ApplicationId) -> pb.ApplicationReport:
        for report in self.reports:
            if report.application_id == identifier:
                return report
        raise gone()

    def containers(self, attempt: pb.ApplicationAttemptId) -> list[pb.ContainerReport]:
        if attempt.application_id.id not in self.held:
            raise gone()
        return self.held[attempt.application_id.id]

    def set_lifetime(self, identifier: pb.ApplicationId, ends_at: str) -> None:
        self.application(identifier)
        self.lifetimes[records.application_text(identifier)] = ends_at

    def set_priority(self, identifier: pb.ApplicationId, priority: int) -> int:
        self.application(identifier)
        given = min(priority, self.most)
        self.priorities[records.application_text(identifier)] = given
        return given

    def signal(self, identifier: pb.ContainerId, command: int) -> None:
        raise RemoteError(
            "rm1", "x.YarnException", "Trying to signal an absent container container_1_0001_01_000001"
        )

    def close(self) -> None: ...

    def rest(
        self, address: object, path: str, query: dict[str, str], timeout_s: float, kerberos: object
    ) -> Any:
        match path:
            case "info":
                return {"clusterInfo": {"id": 17, "hadoopVersion": "3.5.0"}}
            case "scheduler":
                return {"scheduler": {"schedulerInfo": {"type": self.scheduler}}}
            case _:
                assert query["queue"] == "default", "what the flex queue waits for is flexo's own"
                return {"apps": {"app": self.asked} if self.asked else None}


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    made = Manager()
    monkeypatch.setattr(adapter.rest, "get", made.rest)
    return made


def cluster(manager: Manager, site: Site | None = None) -> YarnCluster:
    return YarnCluster(YarnSettings(), site or Site(), CONFIGURATION, lambda: manager)  # type: ignore[arg-type, return-value]


def elastic_job(manager: Manager, flex_user: str = "root") -> None:
    base, flex = application(1, tags=TAGS), application(2, tags=["flexo:base=application_1700000000000_0001"])
    flex.user, flex.queue = flex_user, "root.flex"
    manager.reports += [base, flex]
    manager.held[1] = [container(base, number, number - 1) for number in (1, 2, 3)]
    ended = container(flex, 2, 6)
    ended.state = pb.C_COMPLETE
    manager.held[2] = [container(flex, 1, 5), ended]


def test_a_look_shows_bases_their_satellites_and_what_others_ask_for(manager: Manager) -> None:
    elastic_job(manager)
    ordinary = application(3)
    ordinary.application_type = "SPARK"
    manager.reports.append(ordinary)
    manager.pending = 1
    capability = {"memory": 64, "vCores": 1}
    manager.asked = [
        {"id": records.application_text(each.application_id), "resourceRequests": [
            {"resourceName": "*", "numContainers": 1, "capability": capability}]}
        for each in manager.reports
    ]  # fmt: skip
    state = cluster(manager).observe()
    base, spark, satellite, waiting = state.jobs
    assert base.elastic is not None
    assert satellite.satellite is not None
    assert satellite.satellite.base == base.key
    assert (spark.state, waiting.state) == (JobState.RUNNING, JobState.PENDING)
    assert waiting.identifier == spark.identifier
    assert {partition.name for partition in state.partitions} == {"default", "flex", "infer"}
    assert [node.name for node in state.nodes] == ["h1", "h2"]


def test_an_application_that_names_another_users_job_as_its_base_has_no_satellites(manager: Manager) -> None:
    elastic_job(manager, flex_user="daemon")
    assert all(job.satellite is None for job in cluster(manager).observe().jobs)


def test_an_application_that_ends_during_the_look_disturbs_nothing(manager: Manager) -> None:
    elastic_job(manager)
    manager.held.clear()
    (base,) = cluster(manager).observe().jobs
    assert base.state is JobState.PENDING


def test_a_base_of_which_the_resourcemanager_shows_nothing_for_a_while_runs_on_with_its_satellites(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic_job(manager)
    now = 1000.0
    monkeypatch.setattr(adapter.time, "monotonic", lambda: now)
    seen = cluster(manager)
    before, satellite = seen.observe().jobs
    gang, nodes = manager.held[1], set(before.nodes)
    for state, shown, away in (
        (pb.ACCEPTED, [], nodes),
        (pb.RUNNING, [], nodes),
        (pb.RUNNING, gang[:2], nodes),
        (pb.ACCEPTED, [], set()),
    ):
        manager.reports[0].state, manager.held[1], manager.away = state, shown, away
        manager.held[2], kept = [], manager.held[2]
        assert seen.observe().jobs == (before, satellite)
        manager.held[2] = kept
        now += remembered.PATIENCE_S / 4 - 1
    manager.reports[0].state, manager.held[1] = pb.RUNNING, gang
    assert seen.observe().jobs[0].state is JobState.RUNNING
    manager.held[1], manager.away = [], nodes
    assert seen.observe().jobs[0].state is JobState.RUNNING
    now += remembered.PATIENCE_S
    assert seen.observe().jobs[0].state is JobState.PENDING


def test_a_base_that_has_lost_a_container_on_a_node_that_is_there_runs_on_for_seconds_only(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic_job(manager)
    now = 1000.0
    monkeypatch.setattr(adapter.time, "monotonic", lambda: now)
    seen = cluster(manager)
    before = seen.observe().jobs[0]
    manager.held[1] = manager.held[1][:2]
    assert seen.observe().jobs[0] == before
    now += remembered.RETURNS_S
    assert seen.observe().jobs[0].state is JobState.PENDING
    manager.reports[0].state = pb.ACCEPTED
    assert seen.observe().jobs[0].state is JobState.PENDING, "it waits, also after a restart of YARN"


def test_a_satellite_whose_node_is_away_is_not_lost_until_the_node_is_back_without_it(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic_job(manager)
    now = 1000.0
    monkeypatch.setattr(adapter.time, "monotonic", lambda: now)
    seen = cluster(manager)
    both = seen.observe().jobs
    node, containers = both[1].nodes[0], manager.held[2]
    manager.held[2], manager.away = [], {node}
    for _ in range(3):
        assert seen.observe().jobs == both
        now += remembered.PATIENCE_S / 4
    manager.away = set()
    assert seen.observe().jobs == both, "a node registers before its containers are known"
    manager.held[2] = containers
    assert seen.observe().jobs == both
    manager.held[2] = []
    assert len(seen.observe().jobs) == 1, "the node is there, and says that the container has ended"
    manager.held[2] = containers
    seen.observe()
    manager.held[2], manager.away = [], {node}
    assert seen.observe().jobs == both
    manager.away = set()
    assert seen.observe().jobs == both
    now += remembered.RETURNS_S
    assert len(seen.observe().jobs) == 1


def test_a_satellite_whose_node_does_not_come_back_is_lost(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic_job(manager)
    now = 1000.0
    monkeypatch.setattr(adapter.time, "monotonic", lambda: now)
    seen = cluster(manager)
    both = seen.observe().jobs
    manager.held[2], manager.away = [], {both[1].nodes[0]}
    assert seen.observe().jobs == both
    now += remembered.PATIENCE_S
    assert len(seen.observe().jobs) == 1


def test_satellites_of_a_flex_application_that_registers_again_are_not_lost(manager: Manager) -> None:
    elastic_job(manager)
    seen = cluster(manager)
    both = seen.observe().jobs
    manager.reports[1].state = pb.ACCEPTED
    assert seen.observe().jobs == both
    del manager.reports[1]
    assert len(seen.observe().jobs) == 1


def test_a_base_that_begins_anew_waits_until_its_gang_is_there(manager: Manager) -> None:
    elastic_job(manager)
    seen = cluster(manager)
    seen.observe()
    manager.held[1] = manager.held[1][:2]
    manager.held[1][1].priority.priority = priority_of(1, 1)
    base = seen.observe().jobs[0]
    assert (base.state, base.restart_count) == (JobState.PENDING, 1)


def test_a_base_that_has_ended_is_forgotten(manager: Manager) -> None:
    elastic_job(manager)
    seen = cluster(manager)
    seen.observe()
    reports, manager.reports = manager.reports, []
    assert seen.observe().jobs == ()
    manager.reports, manager.held[1] = reports, []
    assert seen.observe().jobs[0].state is JobState.PENDING


def test_time_limits_that_are_refused_are_named_and_the_others_extended(manager: Manager) -> None:
    elastic_job(manager)
    known, unknown = "application_1700000000000_0002", "application_1700000000000_0009"
    with pytest.raises(ActionRefused) as caught:
        cluster(manager).extend([unknown, known, known], 60)
    assert caught.value.jobs == {unknown}
    assert set(manager.lifetimes) == {known}


def test_a_flexod_that_was_replaced_changes_nothing(manager: Manager) -> None:
    elastic_job(manager)

    def may_not() -> None:
        raise MayNotAct("another flexod acts")

    replaced = cluster(manager, Site(may_act=may_not))
    for attempt in (
        lambda: replaced.extend(["application_1700000000000_0002"], 60),
        lambda: replaced.cancel("container_1_0001_01_000001"),
    ):
        with pytest.raises(MayNotAct):
            attempt()
    assert not manager.lifetimes


def test_to_end_what_has_ended_is_no_error(manager: Manager) -> None:
    cluster(manager).cancel("container_1_0001_01_000001")


def test_ends_are_those_of_applications_that_are_listed_and_over(manager: Manager) -> None:
    running, over = application(1), application(2)
    over.state, over.final_status, over.finish_time = pb.FINISHED, pb.APP_FAILED, 9_000
    manager.reports = [running, over]
    keys = [
        JobKey(records.application_number(each.application_id)) for each in (running, over, application(3))
    ]
    ends = cluster(manager).ends(keys)
    assert [(key, end.state, end.ended_at) for key, end in ends.items()] == [(keys[1], "FAILED", 9.0)]


@pytest.mark.parametrize("error", [Unreachable("away"), RemoteError("rm1", "x.AccessControlException", "no")])
def test_a_question_that_is_not_answered_is_no_refusal(manager: Manager, error: Exception) -> None:
    manager.error = error
    with pytest.raises(ClusterUnreachable):
        cluster(manager).observe()


def test_another_scheduler_than_the_capacity_scheduler_is_refused(manager: Manager) -> None:
    assert cluster(manager).traits().version == "3.5.0"
    manager.scheduler = "fairScheduler"
    with pytest.raises(ClusterUnreachable, match="fairScheduler"):
        cluster(manager).traits()


LENT = Site(borrowed=Borrowed("flex@inference", static=True))


def test_a_satellite_on_a_lent_server_is_known_by_the_partition_that_its_grant_names(
    manager: Manager,
) -> None:
    elastic_job(manager)
    manager.label = "inference"
    manager.held[2][0].node_id.host = "h2"
    state = cluster(manager, LENT).observe()
    (satellite,) = (job for job in state.jobs if job.satellite is not None)
    assert satellite.partitions == ("flex@inference",)
    nodes = {partition.name: partition.nodes for partition in state.partitions}
    assert nodes["flex"] == nodes["default"] == {"h1"}
    assert nodes["infer"] == nodes["flex@inference"] == {"h2"}


def test_the_servers_of_inference_applications_are_known_where_they_are_lent(manager: Manager) -> None:
    inference = application(3)
    inference.application_type, inference.queue = "TRITON", "root.infer"
    manager.reports = [inference]
    manager.held[3] = [container(inference, 1, 1, gpus=4)]
    manager.held[3][0].node_id.host = "h2"
    (job,) = cluster(manager, LENT).observe().jobs
    assert (job.nodes, job.partitions) == (("h2",), ("infer",))
    (job,) = cluster(manager).observe().jobs
    assert job.nodes == ()  # nobody asks for each application's containers without a reason


def test_priorities_are_set_in_the_order_that_flexod_wants_and_a_limit_of_the_queue_is_told(
    manager: Manager,
) -> None:
    manager.reports = [application(1), application(2)]
    yarn = cluster(manager)
    first, second = yarn.arrange([1, 1])
    assert first > second
    assert yarn.in_band(second)
    assert not yarn.in_band(1), "an application without a priority of its own"
    names = [records.application_text(each.application_id) for each in manager.reports]
    gone = records.application_text(application(9).application_id)
    yarn.prioritize([Priority(names[0], first), Priority(gone, first), Priority(names[1], second)])
    assert manager.priorities == {names[0]: first - 1, names[1]: second - 1}
    manager.most = 5
    with pytest.raises(ActionRefused, match="queue's limit"):
        yarn.prioritize([Priority(names[0], first)])


def test_a_cluster_whose_applications_have_no_priorities_is_told_what_to_set(manager: Manager) -> None:
    configuration = replace(CONFIGURATION, highest_priority=0)
    yarn = YarnCluster(YarnSettings(), Site(), configuration, lambda: manager)  # type: ignore[arg-type, return-value]
    with pytest.raises(ActionRefused, match="max-application-priority"):
        yarn.prioritize([Priority("application_1700000000000_0001", 7)])
