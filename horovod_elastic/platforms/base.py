"""The interface of a job to the cluster that it runs on, for all kinds of clusters.

Each kind of cluster implements `Platform` and `JobControl` in a folder of its own, and is registered once
(registry.py). Each optional ability is a Protocol of its own beside these two, as `PreemptionNotices` is. Ids
of jobs and satellites are strings here; wire.py converts them for messages.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from flexo_protos.resources import Devices
from horovod_elastic.job_plan import BaseJob, JobPlan, Site

VARIABLE = "FLEXO_PLATFORM"
"""Environment variable: the kind of cluster. flexo sets it for all processes that it starts on a cluster."""
NODE_VARIABLE = "FLEXO_NODE"
"""Environment variable: the cluster's name of the node, for supervisor.py, which cannot ask a platform."""
JOB_VARIABLE = "FLEXO_JOB_ID"
"""Environment variable: the id of the base. flexo sets it for all processes that it starts on a cluster."""
MODULES = "FLEXO_MODULES"
"""Environment variable: a folder from which scripts can import modules, besides their own; or not set."""
ANSWERS_WITHIN_S = 60
"""Longest time that a method may wait for one answer of the cluster."""
ENDS_WITHIN_S = 10.0
"""Time for a satellite to end when it is asked to; then it is cancelled."""


class NotInAJob(Exception):
    """The environment is not that of a job that flexo can run in; the message says why."""


class Refused(Exception):
    """The cluster refused a request, or did not answer; the message is the cluster's own."""


class BaseState(enum.Enum):
    """The state of a job's base in the cluster."""

    RUNS = "runs"
    SUSPENDED = "suspended"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The resources on this node of the part of a job that this process belongs to."""

    node: str
    """The cluster's name of the node; "" if unknown."""
    job_id: str
    """Id of the base or of the satellite; "" outside of any job."""
    restart_count: int
    gpus: tuple[int, ...]
    """The GPUs, as the cluster numbers them on the node, in the order of slots; () if unknown."""


@dataclass(frozen=True, slots=True)
class GrantedWorkers:
    """A grant of flexod's: `workers` workers on `node` (jobs.proto, message Grant)."""

    grant_id: str
    node: str
    workers: int
    """0: the satellite runs an Aggregator instead, on one CPU."""
    partition: str
    time_limit_s: int
    start_within_s: int
    qos: str = ""
    """QOS of the satellite; "": that of the base."""
    signature: bytes = b""
    """flexod's signature, for a flexod that does not know the grant."""
    shared_gpus: tuple[Devices, ...] = ()
    """The GPUs of its workers, if other jobs hold these GPUs. The satellite then holds none itself."""


@dataclass(frozen=True, slots=True)
class SatelliteStatus:
    """The state in the cluster of a satellite that has not ended."""

    placed: bool
    """Whether the satellite has its node; else it waits."""
    reason: str = ""
    """Why the satellite waits, in the cluster's words."""
    blocked: bool = False
    """Whether the satellite waits because of a limit, not for GPUs, so that it will not start soon."""
    held: bool = False
    """Whether the satellite waits for somebody to release it. flexod releases those for shared GPUs."""


@dataclass(frozen=True, slots=True)
class Found:
    """A satellite of this job in the cluster, which an earlier leader may have submitted."""

    id: str
    grant_id: str
    node: str
    workers: int
    runs: bool = True
    """Whether the satellite has its node."""


class AgentProcess(Protocol):
    """The process that runs the agent of one of the base's nodes. subprocess.Popen has this interface."""

    def wait(self) -> int:
        """Wait until the process has ended; return its exit code, negative for a signal."""
        ...

    def terminate(self) -> None:
        """Ask the process to end. Does nothing if it has ended."""
        ...

    def kill(self) -> None:
        """Kill the process. Does nothing if it has ended."""
        ...


@runtime_checkable
class JobControl(Protocol):
    """A job's requests to the cluster, with the rights of its own user. Methods may wait, and any thread may
    call them.

    Processes that it starts have VARIABLE, NODE_VARIABLE and JOB_VARIABLE in their environment. Their
    environment has no variable of the cluster about another part of the job.
    """

    @property
    def name(self) -> str:
        """The cluster's name in sentences: "NAME takes the node back"."""
        ...

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> AgentProcess:
        """Start the supervisor of a node of the base. `again`: an earlier one has ended before the job.

        Raises OSError if the process cannot be started now.
        """
        ...

    def terminate_base(self) -> None:
        """Send SIGTERM to all agents of the base, as the cluster itself does. Raises Refused."""
        ...

    def base_state(self) -> BaseState:
        """The state of the base. Raises Refused."""
        ...

    def submit(self, grant: GrantedWorkers) -> str:
        """Submit the satellite of a grant; return its id. Raises Refused."""
        ...

    def find(self) -> list[Found]:
        """All satellites of this job that wait or run, also those that earlier leaders submitted. Raises
        Refused."""
        ...

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """The status of each of these satellites that has not ended. Raises Refused."""
        ...

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        """End satellites, whether they wait or run. Those that have ended are ignored. Raises Refused.

        Running satellites are asked first, and get `within_s` to end; then they are cancelled.
        """
        ...

    def how_to_cancel(self, satellite_ids: Iterable[str]) -> str:
        """The command with which the user ends these satellites."""
        ...


@runtime_checkable
class AggregatorSatellites(Protocol):
    """A JobControl of a cluster where a satellite may have CPUs only, and run an Aggregator."""

    def submit_aggregator(self, grant: GrantedWorkers) -> str:
        """Submit the satellite of a grant of no workers: one CPU, no GPU. Return its id. Raises Refused."""
        ...


@runtime_checkable
class PreemptionNotices(Protocol):
    """A JobControl whose cluster notifies the job, not the satellite, when it takes a satellite back."""

    def on_preemption(self, notice: Callable[[str, str], None]) -> None:
        """Have `notice` called, in any thread, with the satellite's id and the reason in one phrase."""
        ...


@runtime_checkable
class Platform(Protocol):
    """The cluster around this process. Methods raise NotInAJob if the cluster's answer cannot be used."""

    @property
    def name(self) -> str:
        """The cluster's name in sentences, as in JobControl."""
        ...

    def allocation(self) -> Allocation:
        """The allocation of this process. It is read from the environment alone, and never raises."""
        ...

    def base_job(self) -> BaseJob:
        """The job whose script this process is."""
        ...

    def site(self) -> Site:
        """The parts of the cluster's own configuration that flexo uses."""
        ...

    def node_address(self, node: str) -> str:
        """The address or name at which the cluster reaches `node`."""
        ...

    def host_name(self, node: str) -> str:
        """The name of the host that `node` is on."""
        ...

    def output_path(self, job_id: str) -> str:
        """The file that the base's standard output goes to; "" if unknown."""
        ...

    def satellite_options(self, job_id: str) -> tuple[str, ...]:
        """The parts of the base's request that satellites repeat, as options of the cluster's command.

        Raises NotInAJob if the cluster does not tell.
        """
        ...

    def takes_back(self, job_id: str) -> bool:
        """Whether the cluster takes this satellite back. It may have said so before any process listened.

        False if the cluster does not answer.
        """
        ...

    def requeue_if_preempted(self, job_id: str) -> bool:
        """Requeue a base that the cluster takes back and can run again, and wait to be ended.

        Returns whether the base was requeued. Call it last in a job, in the main thread.
        """
        ...

    def control(self, plan: JobPlan, command: Sequence[str]) -> JobControl:
        """The JobControl of the job with this plan, whose workers run `command`."""
        ...


def with_satellite_options(base: BaseJob, platform: Platform) -> BaseJob:
    """The base with the options that its satellites repeat, if it may have satellites. Raises NotInAJob."""
    return replace(base, satellite_options=platform.satellite_options(base.job_id)) if base.elastic else base


@runtime_checkable
class RankVariables(Protocol):
    """A Platform whose cluster tells the processes that it starts their ranks, in their environment.

    flexo's agents start workers, not the cluster. Scripts that read the cluster's variables read these.
    """

    def rank_variables(self, rank: int, size: int, local_rank: int) -> Mapping[str, str]:
        """The variables of a process with this rank, of `size` processes, and with this rank on its node."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cluster, for the registry."""

    name: str
    """The value of VARIABLE."""
    recognizes: Callable[[Mapping[str, str]], bool]
    """Whether an environment is that of a job on such a cluster."""
    open: Callable[[Mapping[str, str]], Platform]
    """The platform of the process with this environment."""


def agent_name(node: str, job_id: str) -> str:
    """The name of the agent of `node` in the base or satellite `job_id`. For Horovod's core, it is a host."""
    return f"{node}-{job_id}"
