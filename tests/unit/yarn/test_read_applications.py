"""What the ResourceManager reports, as flexo's jobs, nodes and demand."""

from __future__ import annotations

import pwd

import pytest

from flexo.clusters.yarn import read_applications as read
from flexo.clusters.yarn.owners import owner_of
from flexo.model.queue import JobKey, JobState, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.resources import Resources
from flexo_yarn import records, runs

TAGS = ["flexo:elastic=2-8", "flexo:worker=1,2,1024", "flexo-key:00"]


def application(number: int, **fields: object) -> pb.ApplicationReport:
    identifier = pb.ApplicationId(cluster_timestamp=1_700_000_000_000, id=number)
    attempt = pb.ApplicationAttemptId(application_id=identifier, attempt_id=1)
    return pb.ApplicationReport(
        application_id=identifier,
        user="root",
        queue="root.default",
        state=pb.RUNNING,
        application_type="FLEXO",
        current_attempt_id=attempt,
        start_time=5_000,
        **fields,  # type: ignore[arg-type]
    )


def container(
    report: pb.ApplicationReport,
    number: int,
    priority: int,
    host: str = "h1",
    attempt: int = 1,
    gpus: int = 1,
) -> pb.ContainerReport:
    of = pb.ApplicationAttemptId(application_id=report.application_id, attempt_id=attempt)
    return pb.ContainerReport(
        container_id=pb.ContainerId(application_attempt_id=of, id=number),
        node_id=pb.NodeId(host=host, port=8041),
        priority=pb.Priority(priority=priority),
        resource=records.resource(1024 * gpus, 2 * gpus, gpus),
        creation_time=7_000,
    )


def declared(*tags: str) -> read.Declared | None:
    return read.Declared.read(tags)


def test_the_tags_say_what_the_user_has_declared() -> None:
    found = declared(*TAGS, "flexo:batch=64-512", "flexo:heterogeneous")
    assert found is not None
    assert (found.elastic.workers, found.elastic.batch) == (Range(2, 8), Range(64, 512))
    assert (found.elastic.heterogeneous, found.elastic.fungible) == (True, False)
    assert found.worker == Resources(1, 2, 1024)


@pytest.mark.parametrize(
    "tags",
    [
        (),
        ("flexo:elastic=2-8",),
        ("flexo:worker=1,2,1024",),
        ("flexo:elastic=8-2", "flexo:worker=1,2,1024"),
        ("flexo:elastic=0-2", "flexo:worker=1,2,1024"),
        ("flexo:elastic=2-8", "flexo:worker=1,2"),
        ("flexo:elastic=two-8", "flexo:worker=1,2,1024"),
    ],
)
def test_tags_that_say_nothing_usable_declare_nothing(tags: tuple[str, ...]) -> None:
    assert declared(*tags) is None


def test_a_base_waits_until_its_last_container_is_there() -> None:
    report, said = application(7, tags=TAGS), declared(*TAGS)
    assert said is not None
    waiting = read.base_job(report, said, [container(report, 1, 0), container(report, 2, 1)])
    assert (waiting.state, waiting.wait) == (JobState.PENDING, WaitReason.RESOURCES)
    assert sum(request.units for request in waiting.requests) == 1
    all_there = [container(report, number, number - 1, f"h{number}") for number in (1, 2, 3)]
    running = read.base_job(report, said, all_there)
    assert (running.state, running.nodes, running.num_nodes) == (JobState.RUNNING, ("h2", "h3"), 2)
    assert running.resources == Resources(2, 4, 2048)
    assert (running.job_id, running.identifier) == (
        1_700_000_000_000_000_007,
        "application_1700000000000_0007",
    )


def test_a_time_that_yarn_does_not_know_is_not_the_year_1970() -> None:
    """Else the job would count as one that runs for half a century, and so would the user's next ones."""
    report, said = application(7, tags=TAGS), declared(*TAGS)
    assert said is not None
    all_there = [container(report, number, number - 1) for number in (1, 2, 3)]
    for each in all_there:
        each.creation_time = 0
    assert read.base_job(report, said, all_there).started_at is None
    report.start_time, report.state = 0, pb.RUNNING
    assert read.ordinary_job(report).started_at is None


def test_a_jobs_run_is_what_its_last_containers_say_whichever_attempt_of_its_master_holds_them() -> None:
    said = declared(*TAGS)
    assert said is not None
    report = application(7, tags=TAGS)
    report.current_attempt_id.attempt_id = 2
    kept = [container(report, number, runs.priority_of(0, number), attempt=1) for number in (1, 2)]
    assert read.base_job(report, said, kept).restart_count == 0
    none = read.base_job(report, said, []).restart_count
    assert none == runs.first_run(2) > 0
    first = [container(report, 3, runs.priority_of(5, 1), attempt=2)]
    waits = read.base_job(report, said, [*kept, *first])
    assert (waits.restart_count, waits.state) == (5, JobState.PENDING)


def test_each_container_of_a_flex_application_is_the_satellite_of_the_grant_that_its_priority_names() -> None:
    report, said = application(7, tags=TAGS), declared(*TAGS)
    assert said is not None
    base = read.base_job(report, said, [container(report, number, number) for number in (1, 2)])
    flex = application(8, tags=["flexo:base=application_1700000000000_0007"])
    priority = records.grant_priority("g0000abcd")
    named = read.base_of(flex)
    assert named is not None
    held = [container(flex, 3, priority, gpus=3)]
    (satellite,) = read.satellites_of(flex, base, named, held, 67.0, {})
    assert satellite.satellite == SatelliteTag(JobKey(base.job_id), "g0000abcd", 3)
    assert satellite.job_id == records.satellite_number(flex.application_id, priority)
    assert (satellite.time_limit_s, satellite.time_limit_id) == (60, "application_1700000000000_0008")
    assert records.container_text(records.read_container(satellite.identifier)) == satellite.identifier
    queue = flex.queue.rpartition(".")[2]
    assert satellite.partitions == (queue,)
    labels = {held[0].node_id.host: "inference"}
    (lent,) = read.satellites_of(flex, base, named, held, 67.0, labels)
    assert lent.partitions == (f"{queue}@inference",)


def test_an_applications_nodes_are_those_where_it_holds_gpus() -> None:
    report = application(9)
    assert read.ordinary_job(report).nodes == ()
    held = [container(report, 1, 0, gpus=0), container(report, 2, 1, gpus=2)]
    held[0].node_id.host, held[1].node_id.host = "h1", "h2"
    assert read.ordinary_job(report, held).nodes == ("h2",)
    assert read.ordinary_job(report, held[:1]).nodes == ("h1",)


@pytest.mark.parametrize("tag", ["flexo:base=", "flexo:base=job 7", "flexo:based=application_1_0001"])
def test_a_tag_that_names_no_application_makes_nothing_a_satellite(tag: str) -> None:
    assert read.base_of(application(8, tags=[tag])) is None


def test_what_is_asked_for_and_not_there_is_a_job_that_waits() -> None:
    running = read.ordinary_job(application(9))
    asked = [
        {"resourceName": "*", "numContainers": 2, "capability": gpu(3)},
        {"resourceName": "/default-rack", "numContainers": 2, "capability": gpu(3)},
        {"resourceName": "*", "numContainers": 0, "capability": gpu(1)},
    ]
    waiting = read.pending_job(running, asked)
    assert waiting is not None
    assert (waiting.state, waiting.wait) == (JobState.PENDING, WaitReason.RESOURCES)
    assert waiting.key != running.key
    assert waiting.resources == Resources(6, 2, 512)
    (request,) = waiting.requests
    assert (request.units, request.unit.gpus, request.divisible) == (2, 3, True)
    assert read.pending_job(running, []) is None


def test_what_an_application_asks_for_before_it_runs_is_its_own_job() -> None:
    report = application(9)
    report.state = pb.ACCEPTED
    job = read.ordinary_job(report)
    waiting = read.pending_job(job, [{"resourceName": "*", "numContainers": 1, "capability": gpu(0)}])
    assert waiting is not None
    assert waiting.key == job.key


def gpu(count: int) -> dict[str, object]:
    information = [{"name": "memory-mb", "value": 256}, {"name": records.GPU, "value": count}]
    return {"memory": 256, "vCores": 1, "resourceInformations": {"resourceInformation": information}}


def test_an_application_without_a_lifetime_has_no_end() -> None:
    report = application(8)
    assert read.ends_at(report, 100.0) is None
    timeout = pb.RemainingTimeout(type=pb.APP_TIMEOUT_LIFETIME, remaining=60)
    report.timeouts.add(type=pb.APP_TIMEOUT_LIFETIME, timeout=timeout)
    assert read.ends_at(report, 100.0) == 160.0
    timeout.remaining = -1
    report.timeouts[0].timeout.CopyFrom(timeout)
    assert read.ends_at(report, 100.0) is None


def test_users_that_this_host_does_not_know_have_owners_of_their_own() -> None:
    assert owner_of("root") == "0"
    strangers = {owner_of(f"nobody-of-this-name-{number}") for number in range(50)}
    assert len(strangers) == 50
    assert all(int(each) > 1 << 39 for each in strangers)
    assert owner_of("nobody-of-this-name-1") == owner_of("nobody-of-this-name-1")


def test_a_user_of_hundreds_of_applications_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getpwnam(name: str) -> object:
        asked.append(name)
        return pwd.struct_passwd((name, "x", 1234, 1234, "", "/", "/bin/sh"))

    monkeypatch.setattr("flexo.clusters.yarn.owners.pwd.getpwnam", getpwnam)
    monkeypatch.setattr("flexo.clusters.yarn.owners.time.monotonic", lambda: 1e9)
    assert {owner_of("someone-with-many-jobs") for _ in range(500)} == {"1234"}
    assert asked == ["someone-with-many-jobs"]
    monkeypatch.setattr("flexo.clusters.yarn.owners.time.monotonic", lambda: 1e9 + 60)
    owner_of("someone-with-many-jobs")
    assert len(asked) == 2  # an account may be made, or get another number
