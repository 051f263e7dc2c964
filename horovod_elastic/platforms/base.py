"""What a job asks of the cluster that it runs on, and nothing about how a cluster does it.

Each kind of cluster implements `Platform` and `JobControl` in a folder of its own, and is registered once
(registry.py). What only some kinds can do is a Protocol of its own beside these two, as `PreemptionNotices`
is. Ids of jobs and satellites are strings here; wire.py has what messages make of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from horovod_elastic.job_plan import BaseJob, JobPlan, Site

VARIABLE = "FLEXO_PLATFORM"
"""Names the kind of cluster; set by flexo for everything that it starts on the cluster."""
NODE_VARIABLE = "FLEXO_NODE"
"""What the cluster calls the node; set likewise, for the keeper, which cannot ask a platform (keeper.py)."""
JOB_VARIABLE = "FLEXO_JOB_ID"
"""The id of the base; set likewise."""
ANSWERS_WITHIN_S = 60
"""The longest that a method may wait for one answer of the cluster."""
ENDS_WITHIN_S = 10.0
"""How long a satellite may take to end as it was asked to; then it is cancelled."""


class NotInAJob(Exception):
    """The environment is not that of a job that flexo can run in; the message says why."""


class Refused(Exception):
    """The cluster does not do what it was asked to, or does not answer; the message is its own."""


class BaseState(enum.Enum):
    """What the cluster may say of a job's base."""

    RUNS = "runs"
    SUSPENDED = "suspended"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the cluster has given on this node to the part of a job that this process belongs to."""

    node: str
    """As the cluster calls it; "" if unknown."""
    job_id: str
    """Of the base, or of the satellite; "" outside of any."""
    restart_count: int
    gpus: tuple[int, ...]
    """As the cluster numbers them on the node, in the order of slots; () if unknown."""


@dataclass(frozen=True, slots=True)
class Grant:
    """flexod's word: `workers` workers on `node` (jobs.proto, message Grant)."""

    grant_id: str
    node: str
    workers: int
    partition: str
    lease_s: int
    start_within_s: int
    qos: str = ""
    """"": the user's own default."""
    signature: bytes = b""
    """flexod's, to be shown to a flexod that does not know the grant."""


@dataclass(frozen=True, slots=True)
class SatelliteStatus:
    """How far the cluster is with a satellite that has not ended."""

    placed: bool
    """It has its node; else it waits."""
    reason: str = ""
    """Why it waits, in the cluster's words."""
    blocked: bool = False
    """It waits for a limit, not for GPUs, and will not start soon however long one waits."""


@dataclass(frozen=True, slots=True)
class Found:
    """A satellite of this job that somebody else has submitted: an earlier leader."""

    id: str
    grant_id: str
    node: str
    workers: int
    runs: bool = True
    """Whether it has its node."""


class AgentProcess(Protocol):
    """The agent of one of the base's nodes, as who has launched it sees it. subprocess.Popen is one."""

    def wait(self) -> int:
        """Until it has ended: its exit code, negative for a signal."""
        ...

    def terminate(self) -> None:
        """Ask it to end. Nothing if it has ended."""
        ...

    def kill(self) -> None:
        """End it. Nothing if it has ended."""
        ...


@runtime_checkable
class JobControl(Protocol):
    """What a job has the cluster do, with the rights of its own user. Methods may wait, and any thread may
    call them.

    What it starts has VARIABLE, NODE_VARIABLE and JOB_VARIABLE in its environment, and nothing there that is
    the cluster's word on another part of the job.
    """

    @property
    def name(self) -> str:
        """The cluster's name in sentences: "NAME takes the node back"."""
        ...

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> AgentProcess:
        """Start the keeper of a node of the base; `again` if it has ended and should not have.

        Raises OSError where that cannot be done now.
        """
        ...

    def terminate_base(self) -> None:
        """SIGTERM for all agents of the base, as the cluster itself sends it. Raises Refused."""
        ...

    def base_state(self) -> BaseState:
        """What has become of the base. Raises Refused."""
        ...

    def submit(self, grant: Grant) -> str:
        """Submit the satellite of a grant; its id. Raises Refused."""
        ...

    def find(self) -> list[Found]:
        """All satellites of this job that wait or run, whoever has submitted them. Raises Refused."""
        ...

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """Of those satellites that have not ended. Raises Refused."""
        ...

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        """End satellites, however far they are, gently for so long. Silent about those that have ended.

        Raises Refused.
        """
        ...

    def how_to_cancel(self, satellite_ids: Iterable[str]) -> str:
        """The command by which the user ends them."""
        ...


@runtime_checkable
class PreemptionNotices(Protocol):
    """A JobControl whose cluster tells the job, and not the satellite, that it takes a satellite back."""

    def on_preemption(self, notice: Callable[[str, str], None]) -> None:
        """Have `notice` called, in any thread, with the satellite's id and the reason in one phrase."""
        ...


@runtime_checkable
class Platform(Protocol):
    """The cluster around this process. Raises NotInAJob where it says nothing that can be used."""

    @property
    def name(self) -> str:
        """As JobControl's."""
        ...

    def allocation(self) -> Allocation:
        """What this process is part of. From the environment alone; raises nothing."""
        ...

    def base_job(self) -> BaseJob:
        """The job whose script this process is."""
        ...

    def site(self) -> Site:
        """What the cluster says of its own configuration."""
        ...

    def node_address(self, node: str) -> str:
        """The address or name where the cluster reaches `node`."""
        ...

    def host_name(self, node: str) -> str:
        """The name of the host that `node` is on."""
        ...

    def output_path(self, job_id: str) -> str:
        """The file that the base's standard output goes to; "" if unknown."""
        ...

    def takes_back(self, job_id: str) -> bool:
        """Whether the cluster takes this satellite back, and perhaps said so before anybody listened.

        False where it does not answer.
        """
        ...

    def requeue_if_preempted(self, job_id: str) -> bool:
        """If the cluster takes the base back and can run it again: have it do so, and wait to be ended.

        Whether that is so. Call it as the last thing of a job, in the main thread.
        """
        ...

    def control(self, plan: JobPlan, command: Sequence[str]) -> JobControl:
        """Of the job with this plan, whose workers run `command`."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cluster, for the registry."""

    name: str
    """What VARIABLE calls it."""
    recognizes: Callable[[Mapping[str, str]], bool]
    """Whether an environment is that of a job there."""
    open: Callable[[Mapping[str, str]], Platform]
    """The platform of the process with this environment."""


def agent_name(node: str, job_id: str) -> str:
    """What the agent of `node` in the base or satellite `job_id` is called: a host, to Horovod's core."""
    return f"{node}-{job_id}"
