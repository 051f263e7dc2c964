"""The Platform for YARN: a process's job, from what its ApplicationMaster has put into its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flexo_protos.credentials import new_authenticator
from flexo_yarn import credentials
from flexo_yarn.credentials import RM_KIND
from flexo_yarn.resource_manager import ResourceManager
from horovod_elastic.job_plan import BaseJob, JobPlan, Site, host_of
from horovod_elastic.platforms.base import Allocation, JobControl, NotInAJob
from horovod_elastic.platforms.yarn import environment as environments
from horovod_elastic.platforms.yarn.environment import RESOURCE_MANAGER, USER
from horovod_elastic.platforms.yarn.job_control import YarnJobControl


class YarnPlatform:
    """Platform over YARN; `environment` is that of this process."""

    name = "YARN"

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def allocation(self) -> Allocation:
        """The container of this process."""
        return environments.allocation(self._environment)

    def base_job(self) -> BaseJob:
        """Nobody asks for it but `flexo run`. Raises NotInAJob."""
        raise NotInAJob("on YARN, `flexo yarn submit` starts a training command, and flexo run is not needed")

    def site(self) -> Site:
        """YARN binds nothing, and signals the first process of a container only."""
        ((host, _), *_others) = environments.servers(self._environment, RESOURCE_MANAGER)
        return Site(binds_cpus=False, signals_reach_all=False, controller=host)

    def node_address(self, node: str) -> str:
        """The host of the node: YARN knows nodes by it."""
        return host_of(node)

    def host_name(self, node: str) -> str:
        """The host of the node."""
        return host_of(node)

    def output_path(self, job_id: str) -> str:
        """Unknown: YARN collects each container's own output."""
        return ""

    def satellite_options(self, job_id: str) -> tuple[str, ...]:
        """None: containers are requested by the resources of the base's workers alone."""
        return ()

    def takes_back(self, job_id: str) -> bool:
        """YARN tells the ApplicationMaster, and it tells the leader."""
        return False

    def requeue_if_preempted(self, job_id: str) -> bool:
        """YARN runs no application again because of a preemption."""
        return False

    def control(self, plan: JobPlan, command: Sequence[str]) -> JobControl:
        """The job's ApplicationMaster."""
        return YarnJobControl(plan, new_authenticator(), client_opener(self._environment))


def client_opener(environment: Mapping[str, str]) -> Callable[[], ResourceManager]:
    """What opens a connection to the ResourceManager as the job's user. Raises NotInAJob.

    Where there is Kerberos, the submission has put a token into the credentials of all containers.
    """
    servers, user = environments.servers(environment, RESOURCE_MANAGER), environment.get(USER, "")
    if user:
        return lambda: ResourceManager(servers, user=user)
    try:
        token = credentials.read(Path(environment[credentials.VARIABLE])).of_kind(RM_KIND)
    except (KeyError, OSError, ValueError) as error:
        raise NotInAJob(f"the credentials of this container: {error}") from error
    if token is None:
        raise NotInAJob(f"the credentials of this container have no {RM_KIND}, and {USER} is not set")
    return lambda: ResourceManager(servers, token=token)
