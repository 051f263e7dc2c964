"""A kind of cluster in one file: parts of jobs wait for nodes, and the job hears before one is taken back.

It is as unlike Slurm as YARN is: Slurm's variables are not there, and no signal tells of preemption.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flexo_protos.resources import Resources
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site
from horovod_elastic.platforms.base import (
    ENDS_WITHIN_S,
    Allocation,
    BaseState,
    Found,
    GrantedWorkers,
    Kind,
    Refused,
    SatelliteStatus,
)

Notice = Callable[[str, str], None]


@dataclass
class Part:
    """A satellite as the cluster keeps it."""

    grant: GrantedWorkers
    placed: bool = False
    limit: str = ""


@dataclass
class ToyCluster:
    """What all jobs share. Ids begin at 4001."""

    free: set[str] = field(default_factory=set)
    parts: dict[str, Part] = field(default_factory=dict)
    limit: str = ""
    """Why nobody may have more."""
    away: bool = False
    submitted: int = 0
    ended: list[str] = field(default_factory=list)
    listeners: list[Notice] = field(default_factory=list)
    signalled: int = 0

    def asked(self) -> None:
        if self.away:
            raise Refused("the cluster does not answer")

    def take_back(self, satellite_id: str, reason: str) -> None:
        for notice in self.listeners:
            notice(satellite_id, reason)


CLUSTERS: dict[str, ToyCluster] = {}
"""By the name that TOY_CLUSTER has."""


class ToyControl:
    """JobControl and PreemptionNotices."""

    name = "Toyland"

    def __init__(self, cluster: ToyCluster, plan: JobPlan, command: Sequence[str]) -> None:
        self._cluster = cluster
        self._plan = plan
        self._command = command

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> subprocess.Popen[bytes]:
        return subprocess.Popen(list(self._command))

    def terminate_base(self) -> None:
        self._cluster.signalled += 1

    def base_state(self) -> BaseState:
        self._cluster.asked()
        return BaseState.RUNS

    def submit(self, grant: GrantedWorkers) -> str:
        self._cluster.asked()
        satellite_id = str(4001 + self._cluster.submitted)
        self._cluster.submitted += 1
        part = Part(grant, placed=grant.node in self._cluster.free, limit=self._cluster.limit)
        self._cluster.parts[satellite_id] = part
        return satellite_id

    def find(self) -> list[Found]:
        self._cluster.asked()
        return [
            Found(satellite_id, part.grant.grant_id, part.grant.node, part.grant.workers, part.placed)
            for satellite_id, part in self._cluster.parts.items()
        ]

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        self._cluster.asked()
        known = {each: self._cluster.parts[each] for each in satellite_ids if each in self._cluster.parts}
        return {
            each: SatelliteStatus(part.placed, part.limit or "no room", blocked=bool(part.limit))
            for each, part in known.items()
        }

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        self._cluster.asked()
        for each in list(satellite_ids):
            if self._cluster.parts.pop(each, None) is not None:
                self._cluster.ended.append(each)

    def how_to_cancel(self, satellite_ids: Iterable[str]) -> str:
        return f"toy kill {' '.join(satellite_ids)}"

    def on_preemption(self, notice: Notice) -> None:
        self._cluster.listeners.append(notice)


class ToyPlatform:
    """Platform."""

    name = "Toyland"

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._cluster = CLUSTERS.setdefault(environment.get("TOY_CLUSTER", ""), ToyCluster())

    def allocation(self) -> Allocation:
        return Allocation("castle", self._environment.get("TOY_JOB", ""), 0, (0,))

    def base_job(self) -> BaseJob:
        job_id = self._environment["TOY_JOB"]
        return BaseJob(job_id, 0, (BaseNode("castle", 1),), Resources(1, 1, 0, ""), 1, 1, "")

    def site(self) -> Site:
        return Site(binds_cpus=False)

    def node_address(self, node: str) -> str:
        return "127.0.0.1"

    def host_name(self, node: str) -> str:
        return f"{node}.toyland"

    def output_path(self, job_id: str) -> str:
        return ""

    def satellite_options(self, job_id: str) -> tuple[str, ...]:
        return ()

    def takes_back(self, job_id: str) -> bool:
        return False

    def requeue_if_preempted(self, job_id: str) -> bool:
        return False

    def control(self, plan: JobPlan, command: Sequence[str]) -> ToyControl:
        return ToyControl(self._cluster, plan, command)


KIND = Kind("toy", recognizes=lambda environment: "TOY_JOB" in environment, open=ToyPlatform)
