"""What flexo tells the processes of a job on YARN through their environment, and what YARN tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from horovod_elastic.platforms.base import JOB_VARIABLE, NODE_VARIABLE, Allocation, NotInAJob

if TYPE_CHECKING:  # jobs on other clusters import this module, and need none of Hadoop's messages
    from flexo_yarn.ipc.connection import Address

KIND_NAME: Final = "yarn"
"""The value of FLEXO_PLATFORM."""
RESOURCE_MANAGER, SCHEDULER = "FLEXO_YARN_RM", "FLEXO_YARN_SCHEDULER"
"""The ResourceManager's addresses for clients and for ApplicationMasters, host:port."""
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


def address(environment: Mapping[str, str], name: str) -> Address:
    """The address in a variable. Raises NotInAJob."""
    host, _, port = environment.get(name, "").rpartition(":")
    if not host or not port.isdecimal():
        raise NotInAJob(
            f"{name} is '{environment.get(name, '')}', which is no HOST:PORT: flexo sets it in jobs that "
            "`flexo yarn submit` has submitted"
        )
    return host, int(port)
