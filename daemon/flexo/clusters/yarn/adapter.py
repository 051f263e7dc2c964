"""YarnCluster: a YARN cluster for the controller, read by the ResourceManager's protocols."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from flexo.clusters.base import (
    ANSWERED,
    FAILED,
    SILENT,
    ActionRefused,
    ClusterState,
    ClusterTraits,
    ClusterUnreachable,
    JobEnd,
    Priority,
    Site,
    StartBounds,
)
from flexo.clusters.yarn import read_applications as read
from flexo.clusters.yarn.owners import owner_of
from flexo.clusters.yarn.priorities import band_of, set_priorities
from flexo.clusters.yarn.queues import Queue, Rooms, lent_label, queues_of
from flexo.clusters.yarn.read_nodes import to_node
from flexo.clusters.yarn.remembered import RememberedJobs
from flexo.clusters.yarn.settings import YarnSettings
from flexo.model.queue import JobKey, QueuedJob
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import rest
from flexo_yarn.configuration import ClientConfiguration
from flexo_yarn.ipc.errors import IpcError, RemoteError
from flexo_yarn.kerberos import Kerberos
from flexo_yarn.records import (
    ALIVE,
    application_text,
    living,
    numbered_application,
    read_application,
    read_container,
)
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.tags import APPLICATION_TYPE

NODE_STATES: Final = (pb.NS_RUNNING, pb.NS_UNHEALTHY, pb.NS_DECOMMISSIONING)
_GONE: Final = frozenset({"ApplicationNotFoundException", "ApplicationAttemptNotFoundException"})
_NOT_READ: Final = "resourceInfo,timeouts,appNodeLabelExpression,amNodeLabelExpression"
"""Parts of an application in REST that are left out: with them, the answer is four times as long."""
_ABSENT: Final = "absent container"
"""YARN has no exception of its own for a container that has ended."""
_T = TypeVar("_T")


class YarnCluster:
    """A Cluster that knows how jobs ended. Only `extend` and `ends` are for several threads at once."""

    software = "YARN"

    def __init__(
        self,
        settings: YarnSettings,
        site: Site,
        configuration: ClientConfiguration,
        open_client: Callable[[], ResourceManager],
        kerberos: Kerberos | None = None,
    ) -> None:
        """`kerberos`: proves who asks by REST, where the cluster has Kerberos."""
        self._kerberos = kerberos
        self._settings = settings
        self._site = site
        self._configuration = configuration
        self._open_client = open_client
        self._lent_label = lent_label(site.borrowed, settings.flex_queue)
        self._band = band_of(configuration.highest_priority)
        self._client = open_client()
        self._remembered = RememberedJobs()

    def traits(self) -> ClusterTraits:
        """The properties that hold while the ResourceManager runs."""
        info = self._asked("info", lambda: self._rest("info").get("clusterInfo", {}))
        self._check_scheduler()
        return ClusterTraits(
            name=str(info.get("id", "")),
            version=str(info.get("hadoopVersion", "")),
            starts=StartBounds(turn_s=1.0),
            software=self.software,
            satellite_partition=self._settings.flex_queue,
        )

    def _check_scheduler(self) -> None:
        """Raise ClusterUnreachable for a scheduler whose preemption flexo does not know."""
        answer = self._asked("scheduler", lambda: self._rest("scheduler"))
        kind = str(answer.get("scheduler", {}).get("schedulerInfo", {}).get("type", ""))
        if kind.lower() != "capacityscheduler":
            raise ClusterUnreachable(
                f"YARN uses {kind or 'an unknown scheduler'}, and flexo needs CapacityScheduler: "
                "yarn.resourcemanager.scheduler.class in yarn-site.xml"
            )

    def observe(self) -> ClusterState:
        """Poll the ResourceManager."""
        now, started = time.time(), time.monotonic()
        reports = self._asked("nodes", lambda: self._client.nodes(NODE_STATES))
        queues = self._asked("queues", lambda: queues_of(self._client.queues()))
        applications = self._asked("applications", lambda: self._client.applications(states=ALIVE))
        rooms = Rooms(queues, self._settings.flex_queue)
        nodes = tuple(to_node(each, rooms) for each in reports)
        labels = {each.node_id.host: each.labels[0] for each in reports if each.labels}
        back = frozenset(node.name for node in nodes)
        jobs = self._jobs(applications, now, self._lenders(queues), labels, back)
        jobs += self._demand(queues, {job.identifier: job for job in jobs if job.satellite is None})
        # What an application asks for that does not run yet replaces it.
        asked = {job.key: job for job in jobs}
        return ClusterState(
            now, nodes, rooms.partitions(nodes), tuple(asked.values()), time.monotonic() - started
        )

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        """Set the ends of flex applications: the satellites of a job share one lifetime."""
        ends_at = time.time() + seconds_from_now
        self._site.may_act()
        client, refused = self._open_client(), {}
        try:
            for each in dict.fromkeys(time_limits):
                try:
                    self._called(
                        "set lifetime", partial(client.set_lifetime, read_application(each), ends_at)
                    )
                except ActionRefused as error:
                    refused[each] = str(error)
        finally:
            client.close()
        if refused:
            raise ActionRefused("; ".join(refused.values()), frozenset(refused))

    def cancel(self, job: str) -> None:
        """Kill a satellite's container; no error if it has ended meanwhile."""
        container = read_container(job)
        self._acted("signal container", lambda: self._client.signal(container, pb.FORCEFUL_SHUTDOWN))

    def in_band(self, priority: int) -> bool:
        """Whether flexod may have set `priority`."""
        return priority in self._band

    def arrange(self, now: Sequence[int]) -> list[int]:
        """The new priorities of jobs in their start order."""
        return self._band.arrange(now)

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set the priorities of applications. They order those of one queue."""
        self._site.may_act()
        set_priorities(priorities, self._configuration.highest_priority, self._set_priority)

    def _set_priority(self, application: str, priority: int) -> int | None:
        number = read_application(application)
        with suppress(_Gone):
            return self._called("set priority", lambda: self._client.set_priority(number, priority))
        return None

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        """The ends of applications that the ResourceManager still lists."""
        client, found = self._open_client(), {}
        try:
            for key in keys:
                report = self._report(client, key)
                if report is not None and report.state not in ALIVE:
                    found[key] = JobEnd(
                        read.end_of(report),
                        report.start_time / 1000,
                        report.finish_time / 1000,
                        known_by="the ResourceManager",
                    )
        finally:
            client.close()
        return found

    def _report(self, client: ResourceManager, key: JobKey) -> pb.ApplicationReport | None:
        application = numbered_application(key.job_id)
        try:
            return self._asked("application", lambda: client.application(application))
        except _Gone:
            return None

    def _lenders(self, queues: Iterable[Queue]) -> frozenset[str]:
        """The inference cluster's queues, whose nodes are lent. The nodes of their applications matter."""
        if not self._lent_label:
            return frozenset()
        found = (each for each in queues if self._lent_label in each.labels)
        return frozenset(each.name for each in found if each.name != self._settings.flex_queue)

    def _jobs(
        self,
        reports: Sequence[pb.ApplicationReport],
        now: float,
        lenders: frozenset[str],
        labels: Mapping[str, str],
        nodes: frozenset[str],
    ) -> list[QueuedJob]:
        jobs: dict[str, QueuedJob] = {}
        flex: list[tuple[pb.ApplicationReport, pb.ApplicationId]] = []
        for report in reports:
            base, declared = read.base_of(report), read.Declared.read(report.tags)
            if report.application_type != APPLICATION_TYPE or (base is None and declared is None):
                lends = report.queue.rpartition(".")[2] in lenders
                containers = self._containers(report) if lends else ()
                jobs[application_text(report.application_id)] = read.ordinary_job(report, containers)
            elif base is not None:
                flex.append((report, base))
            elif declared is not None:
                containers = self._containers(report)
                job = read.base_job(report, declared, containers)
                placed = len(read.gang_of(containers))
                shows = report.state == pb.RUNNING
                jobs[job.identifier] = self._remembered.base(
                    job, placed, shows=shows, nodes=nodes, now=time.monotonic()
                )
        self._remembered.keep_bases(jobs)
        satellites: list[QueuedJob] = []
        for report, base in flex:
            named = jobs.get(application_text(base))
            found = read.satellites_of(
                report,
                named,
                base,
                read.without_own(self._containers(report)),
                read.ends_at(report, now),
                labels,
            )
            if named is not None and named.owner != owner_of(report.user):
                # The tag names another user's job.
                found = [replace(each, satellite=None) for each in found]
            satellites += found
        shown = {application_text(report.application_id): report.state == pb.RUNNING for report, _ in flex}
        satellites = self._remembered.satellites(satellites, shown, nodes, time.monotonic())
        return [*jobs.values(), *satellites]

    def _containers(self, report: pb.ApplicationReport) -> Sequence[pb.ContainerReport]:
        if report.state != pb.RUNNING:
            return ()
        try:
            found = self._asked("containers", lambda: self._client.containers(report.current_attempt_id))
        except _Gone:  # it has ended since
            return ()
        return living(found)

    def _demand(self, queues: Sequence[Queue], jobs: Mapping[str, QueuedJob]) -> list[QueuedJob]:
        """What applications of queues with unfulfilled requests ask for. flexo's own are known otherwise."""
        found = []
        for queue in queues:
            if not queue.pending or queue.name == self._settings.flex_queue:
                continue
            listed = self._asked("demand", partial(self._asking, queue.path))
            for application in listed:
                job = jobs.get(str(application.get("id", "")))
                if job is None or job.elastic is not None:
                    continue
                if waiting := read.pending_job(job, application.get("resourceRequests") or ()):
                    found.append(waiting)
        return found

    def _asking(self, queue: str) -> Sequence[Mapping[str, Any]]:
        answer = self._rest("apps", queue=queue, states="ACCEPTED,RUNNING", deSelects=_NOT_READ)
        apps = answer.get("apps") or {}
        return apps.get("app") or ()

    def _rest(self, path: str, **query: str) -> Any:
        who = {"user.name": self._settings.user} if self._settings.user else {}
        web, timeout_s = self._configuration.web, self._settings.timeout_s
        return rest.get_from_active(web, path, {**query, **who}, timeout_s, self._kerberos)

    def _acted(self, what: str, act: Callable[[], object]) -> None:
        self._site.may_act()
        with suppress(_Gone):
            self._called(what, act)

    def _asked(self, what: str, ask: Callable[[], _T]) -> _T:
        """The answer to a question. Raises ClusterUnreachable, also if the ResourceManager refuses it."""
        try:
            return self._called(what, ask)
        except _Gone:
            raise
        except ActionRefused as error:
            raise ClusterUnreachable(str(error)) from error

    def _called(self, what: str, ask: Callable[[], _T]) -> _T:
        """The answer of the ResourceManager. Raises ClusterUnreachable, ActionRefused, _Gone."""
        begun, outcome = time.monotonic(), SILENT
        try:
            answer = ask()
            outcome = ANSWERED
            return answer
        except RemoteError as error:
            outcome = FAILED
            gone = error.exception_class in _GONE or _ABSENT in error.text
            kind = _Gone if gone else ActionRefused
            raise kind(str(error)) from error
        except IpcError as error:
            raise ClusterUnreachable(str(error)) from error
        finally:
            self._site.call_ended(what, outcome, time.monotonic() - begun)


class _Gone(ActionRefused):
    """What was to be changed has ended meanwhile."""
