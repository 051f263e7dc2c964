"""The process of a job's ApplicationMaster on YARN: the gang, the base, and what the leader asks for."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flexo_protos.credentials import new_authenticator
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.lease_place import Kind
from flexo_protos.lease_place import parse as parse_place
from flexo_protos.v1.yarn_pb2 import LeaderHello
from flexo_yarn import tags
from flexo_yarn.application_master import ApplicationGone, ApplicationMaster
from flexo_yarn.credentials import AM_RM_KIND, RM_KIND, Credentials
from flexo_yarn.ipc.errors import IpcError, Unreachable
from flexo_yarn.records import application_number, application_text, read_container
from flexo_yarn.runs import first_run
from horovod_elastic import job_plan, launcher, network
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
from horovod_elastic.platforms.yarn import messages
from horovod_elastic.platforms.yarn.base_application import BaseApplication
from horovod_elastic.platforms.yarn.container_start import prepare_python, take_credentials
from horovod_elastic.platforms.yarn.environment import (
    CONTAINER_ID,
    KIND_NAME,
    NM_HOST,
    PART,
    RESOURCE_MANAGER,
    SCHEDULER,
)
from horovod_elastic.platforms.yarn.flex_application import FlexApplication, FlexDescription, FlexState
from horovod_elastic.platforms.yarn.job_options import JobOptions, parse
from horovod_elastic.platforms.yarn.master_control import MasterControl, container_of
from horovod_elastic.platforms.yarn.master_service import MasterService
from horovod_elastic.platforms.yarn.platform import YarnPlatform, client_opener
from horovod_elastic.platforms.yarn.status_page import JobStatus, Part, StatusPage
from horovod_elastic.platforms.yarn.template import Template
from horovod_elastic.trace import say

_SIGNALLED: Final = 128
"""Exit codes from here on are those of a job that a signal has ended."""
LEADER_WITHIN_S: Final = 60.0
"""Longest time until the leader of a job notices another attempt of its ApplicationMaster."""


REGISTERED_WITHIN_S: Final = 600.0
"""Longest time until a ResourceManager answers. By then YARN counts this ApplicationMaster as lost, by
default."""
REGISTER_PAUSE_S: Final = 1.0


class MasterPlatform(YarnPlatform):
    """The Platform of the ApplicationMaster's process, whose JobControl is in the process itself."""

    def __init__(
        self,
        environment: Mapping[str, str],
        make_control: Callable[[JobPlan, Sequence[str]], JobControl],
    ) -> None:
        super().__init__(environment)
        self._make_control = make_control

    def control(self, plan: JobPlan, command: Sequence[str]) -> JobControl:
        """Both applications of the job."""
        return self._make_control(plan, command)


class Master:
    """See the module. `environment`: this process's own, with YARN's and flexo's variables."""

    def __init__(
        self,
        options: JobOptions,
        attempt: pb.ApplicationAttemptId,
        environment: Mapping[str, str],
        credentials: Credentials,
    ) -> None:
        self._options = options
        self._environment = environment
        self._credentials = credentials
        self._attempt = attempt
        self._open_client = client_opener(environment)
        self._platform = MasterPlatform(environment, self._control)
        ((host, _), *_others) = environments.servers(environment, RESOURCE_MANAGER)
        address = network.own_address(environment[NM_HOST], host)
        self._service = MasterService(address, new_authenticator())
        self._token_at = address if credentials.of_kind(RM_KIND) is not None else ""
        self._page = StatusPage(address, self._status)
        self._base: BaseApplication | None = None
        self._flex: FlexApplication | None = None
        self._run_number = first_run(attempt.attempt_id)
        self._resumed = False
        """Whether an earlier attempt has started the base's agents."""
        self._flex_state: FlexState | None = None

    def run(self) -> int:
        """Run the job to its end; return its exit code."""
        try:
            code = self._run()
        except (NotInAJob, network.NoAddress, IpcError, ApplicationGone, ValueError) as error:
            say(f"the job cannot run: {error}")
            code = 2
        self._finish(code)
        self._service.close()
        return code

    def _run(self) -> int:
        base = self._base = self._registered()
        command = list(self._options.command)
        if base.keeps and (hello := self._hello()) is not None:
            plan = job_plan.from_text(hello.plan)
            say("the ApplicationMaster goes on with the job of an earlier attempt")
            base.adopt(plan.base.nodes, plan.base.restart_count)
            self._resumed, self._flex_state = True, messages.read_state(hello.state)
            self._run_number = plan.base.restart_count
            code = launcher.keep_agents(self._platform, plan, command)
        else:
            if base.keeps:
                say("the job begins anew: nobody leads what an earlier attempt has started")
                base.give_up_kept()
            code = launcher.run_job(self._platform, self._base_job(base), command)
        while base.taken and code >= _SIGNALLED:
            say(f"the job waits for its GPUs and begins anew: {base.taken}")
            self._begin_anew(base)
            code = launcher.run_job(self._platform, self._base_job(base), command)
        return code

    def _begin_anew(self, base: BaseApplication) -> None:
        """Give everything back, as for another run."""
        if self._flex is not None:
            try:
                self._flex.finish()
            except (IpcError, ApplicationGone) as error:
                say(f"satellites of the earlier run end with their time limit: {error}")
        base.give_back()
        self._resumed, self._flex, self._flex_state = False, None, None
        self._run_number += 1

    def _end_run(self, why: str) -> None:
        """End the job in order, as a SIGTERM of the user's would."""
        say(why)
        os.kill(os.getpid(), signal.SIGTERM)

    def _status(self) -> JobStatus:
        """What the job holds, for its page."""
        base, flex = self._base, self._flex
        return JobStatus(
            application=application_text(self._attempt.application_id),
            minimum=self._options.minimum,
            maximum=self._options.maximum,
            parts=(
                *(Part("base", node, 1, state) for node, state in (base.states() if base else ())),
                *(
                    Part("satellite", each.node, each.workers, "running" if each.runs else "starting")
                    for each in (flex.find() if flex else ())
                ),
            ),
        )

    def _hello(self) -> LeaderHello | None:
        """What the job's leader says of the job; None if it has no leader that can go on."""
        try:
            hello = self._service.hellos.get(timeout=LEADER_WITHIN_S)
        except queue.Empty:
            return None
        place = parse_place(job_plan.from_text(hello.plan).leases)
        # The earlier attempt itself kept the lease: nobody can lead any more.
        return None if place.kind is Kind.RUN else hello

    def _registered(self) -> BaseApplication:
        token = self._credentials.of_kind(AM_RM_KIND)
        if token is None:
            raise NotInAJob("YARN has put no token for the ResourceManager into the credentials")
        host, _, port = self._service.endpoint.rpartition(":")
        scheduler = environments.servers(self._environment, SCHEDULER)
        master = ApplicationMaster(
            scheduler, token, listens_at=(host.strip("[]"), int(port)), tracking_url=self._page.url
        )
        kept = _register(master)
        return BaseApplication(master, kept, container_of(self._options.shape), self._end_run)

    def _base_job(self, base: BaseApplication) -> BaseJob:
        return BaseJob(
            job_id=str(application_number(self._attempt.application_id)),
            restart_count=self._run_number,
            nodes=base.form(self._options.minimum, self._run_number),
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
        control = MasterControl(plan, command, template, self._base, self._open_client, resumed=self._resumed)
        if plan.base.elastic:
            own = application_text(self._attempt.application_id)
            description = FlexDescription(f"satellites of {own}", f"{tags.BASE}{own}", self._token_at)
            scheduler = environments.servers(self._environment, SCHEDULER)
            flex = self._flex = control.flex = FlexApplication(
                self._open_client,
                scheduler,
                description,
                control.launch_satellite,
                control.announcements.preemption,
                control.announcements.flex_state,
            )
            self._resume(flex, self._flex_state, control)
        self._service.control = control
        return control

    def _resume(self, flex: FlexApplication, state: FlexState | None, control: MasterControl) -> None:
        """Go on with the satellites of an earlier attempt, or end them if nobody knows their token."""
        try:
            if state is not None:
                flex.resume(state, control.resource)
            elif self._attempt.attempt_id > 1:
                flex.end_forgotten()
        except (IpcError, ApplicationGone) as error:
            say(f"satellites of the earlier attempt end with their time limit: {error}")

    def _finish(self, code: int) -> None:
        """End both applications. YARN ends what is left of one that cannot be told."""
        try:
            if self._flex is not None:
                self._flex.finish()
            if self._base is not None and not self._base.gone:
                self._base.finish(code == 0, "" if code == 0 else f"the training command ended with {code}")
        except (IpcError, ApplicationGone) as error:
            say(f"YARN was not told of the job's end: {error}")


def _register(master: ApplicationMaster) -> tuple[pb.Container, ...]:
    """Register, once a ResourceManager answers; return the containers of earlier attempts. Raises as
    `ApplicationMaster.register`.

    YARN has few attempts of an application, and a ResourceManager may just start.
    """
    deadline = time.monotonic() + REGISTERED_WITHIN_S
    said = False
    while True:
        try:
            return master.register()
        except Unreachable as error:
            if time.monotonic() > deadline:
                raise
            if not said:
                say(f"waiting for YARN's ResourceManager: {error}")
            said = True
        time.sleep(REGISTER_PAUSE_S)


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -m horovod_elastic.application_master OPTIONS -- COMMAND`."""
    options = parse(arguments)
    credentials = take_credentials()
    prepare_python()
    attempt = read_container(os.environ[CONTAINER_ID]).application_attempt_id
    number = str(application_number(attempt.application_id))
    os.environ.update(
        {
            VARIABLE: KIND_NAME,
            NODE_VARIABLE: os.environ[NM_HOST],
            JOB_VARIABLE: number,
            PART: number,
        }
    )
    return Master(options, attempt, os.environ, credentials).run()


if __name__ == "__main__":
    end_process(lambda: main(sys.argv[1:]))
