"""Converts the ResourceManager's reports to flexo's types. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from flexo.clusters.yarn import priorities
from flexo.clusters.yarn.owners import owner_of
from flexo.clusters.yarn.read_nodes import resources_of
from flexo.model.queue import (
    ElasticRequest,
    JobKey,
    JobState,
    QueuedJob,
    Request,
    SatelliteTag,
    WaitReason,
)
from flexo.model.ranges import BadRange, Range
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.resources import Resources
from flexo_yarn import tags
from flexo_yarn.application_master import ANY
from flexo_yarn.labels import nodes_of
from flexo_yarn.records import (
    GPU,
    application_number,
    application_text,
    container_text,
    gpus,
    priority_grant,
    read_application,
    satellite_number,
)
from flexo_yarn.runs import first_run, run_of

PENDING_PART: Final = 4 * 10**18
"""Added to the number of an application that runs and asks for more: what it asks for is a job of its own."""
_ENDS: Final = {pb.APP_SUCCEEDED: "COMPLETED", pb.APP_FAILED: "FAILED", pb.APP_KILLED: "CANCELLED"}
_WORKER = re.compile(r"(\d{1,4}),(\d{1,6}),(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Declared:
    """What the tags of a base application say. The user has written them, once, at the submission."""

    elastic: ElasticRequest
    worker: Resources

    @classmethod
    def read(cls, said: Iterable[str]) -> Declared | None:
        """The declaration in the tags `said`; None if there is none, or none that can be read."""
        said = tuple(said)
        workers, worker = _range(_value(said, tags.ELASTIC)), _WORKER.fullmatch(_value(said, tags.WORKER))
        if workers is None or worker is None:
            return None
        elastic = ElasticRequest(
            workers=workers,
            fungible=tags.FUNGIBLE in said,
            batch=_range(_value(said, tags.BATCH)),
            heterogeneous=tags.HETEROGENEOUS in said,
        )
        return cls(elastic, Resources(int(worker[1]), int(worker[2]), int(worker[3])))


def _value(said: Iterable[str], tag: str) -> str:
    """What stands behind `tag` in the first tag that begins with it; "" if none does."""
    return next((each.removeprefix(tag) for each in said if each.startswith(tag)), "")


def _range(text: str) -> Range | None:
    with suppress(BadRange):
        return Range.parse(text)
    return None


def base_of(report: pb.ApplicationReport) -> pb.ApplicationId | None:
    """The base application that a flex application names; None for all others."""
    for tag in report.tags:
        if tag.startswith(tags.BASE):
            try:
                return read_application(tag.removeprefix(tags.BASE))
            except ValueError:
                return None
    return None


def without_own(containers: Iterable[pb.ContainerReport]) -> list[pb.ContainerReport]:
    """The containers of an application, without that of its ApplicationMaster."""
    return [each for each in containers if each.priority.priority > 0]


def gang_of(containers: Iterable[pb.ContainerReport]) -> list[pb.ContainerReport]:
    """The containers of a base's last run, without the ApplicationMaster's own (flexo_yarn/runs.py)."""
    gang = without_own(containers)
    last = max((run_of(each.priority.priority) for each in gang), default=0)
    return [each for each in gang if run_of(each.priority.priority) == last]


def base_job(
    report: pb.ApplicationReport, declared: Declared, containers: Sequence[pb.ContainerReport]
) -> QueuedJob:
    """A base application. It waits until all containers of its gang are there."""
    gang = gang_of(containers)
    minimum = declared.elastic.workers.min
    starts = max((each.creation_time for each in gang), default=0)
    whole = len(gang) >= minimum
    ask = Request(declared.worker, minimum - len(gang), per_node=minimum)
    return _job(
        report,
        restart_count=_restarts(report, gang),
        state=JobState.RUNNING if whole else JobState.PENDING,
        wait=WaitReason.NONE if whole else WaitReason.RESOURCES,
        reason="" if whole else f"{len(gang)} of {minimum} containers",
        started_at=_seconds(starts) if whole else None,
        nodes=tuple(sorted({each.node_id.host for each in gang})) if whole else (),
        num_nodes=len({each.node_id.host for each in gang}) if whole else 1,
        resources=declared.worker * minimum,
        requests=() if whole else (ask,),
        elastic=declared.elastic,
    )


def _restarts(report: pb.ApplicationReport, gang: Sequence[pb.ContainerReport]) -> int:
    """The number of the job's run, also if another ApplicationMaster has gone on with it."""
    if gang:
        return run_of(gang[0].priority.priority)
    return first_run(max(1, report.current_attempt_id.attempt_id))


def satellites_of(
    report: pb.ApplicationReport,
    base: QueuedJob | None,
    base_id: pb.ApplicationId,
    containers: Iterable[pb.ContainerReport],
    ends_at: float | None,
    labels: Mapping[str, str],
) -> list[QueuedJob]:
    """The containers of a flex application, each a satellite.

    `ends_at`: the end of their lifetime. `labels`: those of nodes that have one, by host.
    """
    key = JobKey(application_number(base_id), base.restart_count if base else 0)
    worker = base.resources.share(base.elastic.workers.min) if base and base.elastic else Resources()
    return [
        _satellite(report, key, worker, each, ends_at, labels.get(each.node_id.host, ""))
        for each in containers
    ]


def _satellite(
    report: pb.ApplicationReport,
    base: JobKey,
    worker: Resources,
    container: pb.ContainerReport,
    ends_at: float | None,
    label: str,
) -> QueuedJob:
    held, started_at = resources_of(container.resource), _seconds(container.creation_time)
    limit_s = None if ends_at is None or started_at is None else max(0, int(ends_at - started_at))
    priority = container.priority.priority
    workers = held.holds(worker) if worker.cpus else 0
    return QueuedJob(
        job_id=satellite_number(report.application_id, priority),
        owner=owner_of(report.user),
        user=report.user,
        partitions=(nodes_of(report.queue.rpartition(".")[2], label),),
        state=JobState.RUNNING,
        wait=WaitReason.NONE,
        reason="",
        priority=0,
        submitted_at=started_at or 0.0,
        started_at=started_at,
        time_limit_s=limit_s,
        nodes=(container.node_id.host,),
        num_nodes=1,
        resources=held,
        satellite=SatelliteTag(base, priority_grant(priority), workers),
        identifier=container_text(container.container_id),
        time_limit_id=application_text(report.application_id),
    )


def ends_at(report: pb.ApplicationReport, now: float) -> float | None:
    """The end of an application's lifetime (seconds since 1970); None: it has no limit."""
    for each in report.timeouts:
        if each.type == pb.APP_TIMEOUT_LIFETIME and each.timeout.remaining >= 0:
            return now + float(each.timeout.remaining)
    return None


def ordinary_job(report: pb.ApplicationReport, containers: Sequence[pb.ContainerReport] = ()) -> QueuedJob:
    """An application that is not flexo's.

    `containers`: its own, where its nodes matter. Those with GPUs count, if there are any.
    """
    with_gpus = [each for each in containers if gpus(each.resource)]
    nodes = sorted({each.node_id.host for each in with_gpus or containers})
    waits = report.state != pb.RUNNING
    return _job(
        report,
        state=JobState.PENDING if waits else JobState.RUNNING,
        wait=WaitReason.OTHER
        if waits
        else WaitReason.NONE,  # what it waits for is in its demand, if anywhere
        reason=pb.ApplicationState.Name(report.state).lower() if waits else "",
        started_at=None if waits else _seconds(report.launch_time or report.start_time),
        nodes=tuple(nodes),
        num_nodes=max(1, len(nodes)),
        resources=resources_of(report.usage.used),
    )


def pending_job(job: QueuedJob, asked: Sequence[Mapping[str, Any]]) -> QueuedJob | None:
    """What an application asks for and has not got, as a job that waits; None if that is nothing.

    `asked`: its `resourceRequests` in REST. Requests for a node or a rack stand beside one for "*", which
    counts.
    """
    requests = []
    for each in asked:
        count = int(each.get("numContainers", 0))
        if count > 0 and each.get("resourceName") == ANY:
            unit = _amount(each.get("capability") or {})
            requests.append(Request(unit, count, per_node=count, divisible=True))
    if not requests:
        return None
    resources = Resources()
    for request in requests:
        resources += request.unit * request.units
    running = job.state is JobState.RUNNING
    return QueuedJob(
        job_id=job.job_id + (PENDING_PART if running else 0),
        owner=job.owner,
        user=job.user,
        partitions=job.partitions,
        state=JobState.PENDING,
        wait=WaitReason.RESOURCES,
        reason="containers are asked for",
        priority=job.priority,
        submitted_at=job.submitted_at,
        started_at=None,
        time_limit_s=None,
        nodes=(),
        num_nodes=1,
        resources=resources,
        requests=tuple(requests),
        identifier=job.identifier,
    )


def _seconds(milliseconds: int) -> float | None:
    """A time in seconds since 1970. In YARN's messages, 0 stands for a time that is not known."""
    return milliseconds / 1000 if milliseconds else None


def _amount(capability: Mapping[str, Any]) -> Resources:
    information = (capability.get("resourceInformations") or {}).get("resourceInformation") or ()
    others = {each.get("name"): int(each.get("value", 0)) for each in information}
    return Resources(others.get(GPU, 0), int(capability.get("vCores", 0)), int(capability.get("memory", 0)))


def _job(report: pb.ApplicationReport, **fields: Any) -> QueuedJob:
    return QueuedJob(
        job_id=application_number(report.application_id),
        owner=owner_of(report.user),
        user=report.user,
        partitions=(report.queue.rpartition(".")[2],),
        priority=priorities.of(report),
        submitted_at=(report.submit_time or report.start_time) / 1000,
        time_limit_s=None,
        identifier=application_text(report.application_id),
        name=report.name,
        **fields,
    )


def end_of(report: pb.ApplicationReport) -> str:
    """The end of an application, in the words that flexo has from Slurm."""
    return _ENDS.get(report.final_status, pb.ApplicationState.Name(report.state))
