"""What flexo tells the processes of a job on YARN through their environment, and what YARN tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from horovod_elastic.platforms.base import JOB_VARIABLE, NODE_VARIABLE, Allocation, NotInAJob

if TYPE_CHECKING:  # jobs on other clusters import this module, and need none of Hadoop's messages
    from flexo_yarn.failover import Servers

KIND_NAME: Final = "yarn"
"""The value of FLEXO_PLATFORM."""
RESOURCE_MANAGER, SCHEDULER = "FLEXO_YARN_RM", "FLEXO_YARN_SCHEDULER"
"""Where ResourceManagers listen to clients and to ApplicationMasters: host:port, commas between several."""
USER = "FLEXO_YARN_USER"
"""The user of the applications, whom calls of the ResourceManager name; unset where there is Kerberos."""
RUN = "FLEXO_YARN_RUN"
"""The number of the job's run: its restart count."""
PART = "FLEXO_PART_ID"
"""The id of the base or of the satellite that a process belongs to."""
GPUS = "FLEXO_GPUS"
"""The GPUs of a container, as the node numbers them, in the order of slots, separated by commas."""
GPU_PLUGIN = "FLEXO_YARN_GPU_PLUGIN"
"""1: YARN's GPU plugin gives each container its GPUs, and hides the others."""
TEMPLATE = "FLEXO_YARN_TEMPLATE"
"""What all containers of a job have in common (template.py)."""
NM_HOST, CONTAINER_ID = "NM_HOST", "CONTAINER_ID"
"""Set by YARN: the NodeManager's host, and the container."""


def allocation(environment: Mapping[str, str]) -> Allocation:
    """The container of this process."""
    run, gpus = environment.get(RUN, ""), environment.get(GPUS, "").split(",")
    return Allocation(
        node=environment.get(NODE_VARIABLE, ""),
        job_id=environment.get(PART) or environment.get(JOB_VARIABLE, ""),
        restart_count=int(run) if run.isdecimal() else 0,
        gpus=tuple(map(int, gpus)) if all(map(str.isdecimal, gpus)) else (),
    )


def servers_text(servers: Servers) -> str:
    """The value of a variable with these addresses."""
    return ",".join(f"{host}:{port}" for host, port in servers)


def servers(environment: Mapping[str, str], name: str) -> Servers:
    """The addresses in a variable. Raises NotInAJob."""
    text = environment.get(name, "")
    parts = [each.rpartition(":") for each in text.split(",")]
    if not all(host and port.isdecimal() for host, _, port in parts):
        raise NotInAJob(
            f"{name} is '{text}', which is no HOST:PORT, or several with commas: flexo sets it in jobs that "
            "`flexo yarn submit` has submitted"
        )
    return tuple((host, int(port)) for host, _, port in parts)
