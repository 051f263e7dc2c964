"""The process of a job's ApplicationMaster on YARN: the gang, the base, and what the leader asks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from flexo_protos.credentials import new_authenticator
from flexo_protos.resources import rounded_up
from flexo_yarn.application_master import ApplicationGone, ApplicationMaster, Ask
from flexo_yarn.credentials import AM_RM_KIND, Credentials
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.records import application_number, application_text, read_container, resource
from horovod_elastic import launcher, network
from horovod_elastic.agent.process import end_process
from horovod_elastic.job_plan import BaseJob, JobPlan
from horovod_elastic.platforms.base import (
    JOB_VARIABLE,
    NODE_VARIABLE,
    VARIABLE,
    JobControl,
    NotInAJob,
)
from horovod_elastic.platforms.yarn import environment as environments
from horovod_elastic.platforms.yarn.base_application import BaseApplication
from horovod_elastic.platforms.yarn.container_start import put_python_first, take_credentials
from horovod_elastic.platforms.yarn.environment import (
    ATTEMPT,
    CONTAINER_ID,
    KIND_NAME,
    NM_HOST,
    PART,
    RESOURCE_MANAGER,
    SCHEDULER,
)
from horovod_elastic.platforms.yarn.flex_application import FlexApplication, FlexDescription
from horovod_elastic.platforms.yarn.job_options import JobOptions, parse
from horovod_elastic.platforms.yarn.master_control import MasterControl
from horovod_elastic.platforms.yarn.master_service import MasterService
from horovod_elastic.platforms.yarn.platform import YarnPlatform, client_opener
from horovod_elastic.platforms.yarn.template import Template
from horovod_elastic.trace import say


class MasterPlatform(YarnPlatform):
    """The Platform of the ApplicationMaster's process, whose JobControl is in the process itself."""

    def __init__(
        self,
        environment: Mapping[str, str],
        options: JobOptions,
        make_control: Callable[[JobPlan, Sequence[str]], JobControl],
    ) -> None:
        super().__init__(environment)
        self._options = options
        self._make_control = make_control

    def control(self, plan: JobPlan, command: Sequence[str]) -> JobControl:
        """Both applications of the job."""
        return self._make_control(plan, command)


class Master:
    """See the module. `environment`: this process's own, with YARN's and flexo's variables."""

    def __init__(self, options: JobOptions, environment: Mapping[str, str], credentials: Credentials) -> None:
        self._options = options
        self._environment = environment
        self._credentials = credentials
        self._attempt = read_container(environment[CONTAINER_ID]).application_attempt_id
        self._open_client = client_opener(environment)
        self._platform = MasterPlatform(environment, options, self._control)
        host, _ = environments.address(environment, RESOURCE_MANAGER)
        address = network.own_address(environment[NM_HOST], host)
        self._service = MasterService(address, new_authenticator())
        self._base: BaseApplication | None = None
        self._flex: FlexApplication | None = None

    def run(self) -> int:
        """Run the job to its end; return its exit code."""
        try:
            self._base = BaseApplication(self._registered(), self._ask())
            code = launcher.run_job(self._platform, self._base_job(), list(self._options.command))
        except (NotInAJob, network.NoAddress, ValueError) as error:
            say(f"the job cannot run: {error}")
            code = 2
        self._finish(code)
        return code

    def _registered(self) -> ApplicationMaster:
        token = self._credentials.of_kind(AM_RM_KIND)
        if token is None:
            raise NotInAJob("YARN has put no token for the ResourceManager into the credentials")
        host, _, port = self._service.endpoint.rpartition(":")
        scheduler = environments.address(self._environment, SCHEDULER)
        master = ApplicationMaster(scheduler, token, listens_at=(host.strip("[]"), int(port)))
        master.register()
        return master

    def _ask(self) -> Ask:
        shape = self._options.shape
        amount = resource(shape.memory_mib, shape.cpus, rounded_up(shape.gpus, 1))
        return Ask(1, amount, containers=self._options.minimum)

    def _base_job(self) -> BaseJob:
        assert self._base is not None
        return BaseJob(
            job_id=str(application_number(self._attempt.application_id)),
            restart_count=self._attempt.attempt_id - 1,
            nodes=self._base.form(),
            shape=self._options.shape,
            minimum=self._options.minimum,
            maximum=self._options.maximum,
            account=self._options.queue,
            batch=self._options.batch,
            declared=self._options.declared,
            heterogeneous=self._options.heterogeneous,
        )

    def _control(self, plan: JobPlan, command: Sequence[str]) -> MasterControl:
        assert self._base is not None
        template = Template.read(self._environment, self._credentials)
        control = MasterControl(plan, command, template, self._base, self._open_client)
        if plan.base.elastic:
            own = application_text(self._attempt.application_id)
            description = FlexDescription(
                f"satellites of {own}", self._options.flex_queue, f"flexo:base={own}"
            )
            scheduler = environments.address(self._environment, SCHEDULER)
            self._flex = control.flex = FlexApplication(
                self._open_client, scheduler, description, control.launch_satellite, control.notices.add
            )
        self._service.control = control
        return control

    def _finish(self, code: int) -> None:
        """End both applications. YARN ends what is left of one that cannot be told."""
        try:
            if self._flex is not None:
                self._flex.finish()
            if self._base is not None and not self._base.gone:
                self._base.finish(code == 0, "" if code == 0 else f"the training command ended with {code}")
        except (IpcError, ApplicationGone) as error:
            say(f"YARN was not told of the job's end: {error}")


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -m horovod_elastic.application_master OPTIONS -- COMMAND`."""
    options = parse(arguments)
    credentials = take_credentials()
    put_python_first()
    container = read_container(os.environ[CONTAINER_ID])
    number = str(application_number(container.application_attempt_id.application_id))
    os.environ.update(
        {
            VARIABLE: KIND_NAME,
            NODE_VARIABLE: os.environ[NM_HOST],
            JOB_VARIABLE: number,
            PART: number,
            ATTEMPT: str(container.application_attempt_id.attempt_id),
        }
    )
    return Master(options, os.environ, credentials).run()


if __name__ == "__main__":
    end_process(lambda: main(sys.argv[1:]))
