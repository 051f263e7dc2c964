"""The flex application of a job: preemptible, and made when the first satellite is submitted.

It is unmanaged: the job's ApplicationMaster drives it too. Where there is Kerberos, it has a small container
of its own, for its token (flex_token.py).

Each satellite is one container, on one node, with a priority of its own, because YARN's reports name nothing
else that the job has chosen. The application's lifetime is the time limit of all of its satellites: YARN ends
them if nobody extends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn.application_master import ApplicationGone, ApplicationMaster, Ask, HeartbeatResult
from flexo_yarn.failover import Servers
from flexo_yarn.ipc.errors import IpcError, RemoteError
from flexo_yarn.ipc.errors import Refused as NotLetIn
from flexo_yarn.labels import split
from flexo_yarn.node_managers import ContainerRefused, NodeManagers
from flexo_yarn.records import (
    ALIVE,
    ENDED,
    OWN_PRIORITY,
    container_text,
    grant_priority,
    living,
    satellite_number,
)
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.tags import APPLICATION_TYPE
from horovod_elastic import threads
from horovod_elastic.platforms.base import Found, GrantedWorkers, Refused, SatelliteStatus
from horovod_elastic.platforms.yarn.flex_token import CONTAINER, TokenReceiver
from horovod_elastic.platforms.yarn.heartbeats import Heartbeats
from horovod_elastic.trace import say, say_error

ACCEPTED_WITHIN_S: Final = 30.0
"""Longest wait until YARN accepts the application."""
TOKEN_WITHIN_S: Final = 45.0
"""Longest wait for its token, where a container brings it: less than the leader waits."""
_LOOK_S = 0.1
_PREEMPTED = "YARN takes its GPUs for another application"
Launch = Callable[[GrantedWorkers, str], pb.ContainerLaunchContext]
"""What the container of a grant runs, as the satellite of this id."""


@dataclass(frozen=True, slots=True)
class FlexState:
    """What the next attempt of the ApplicationMaster needs to go on with the application."""

    application: pb.ApplicationId
    token: Token
    ends_at: float
    """The end of its lifetime, seconds since 1970, as far as is known."""
    grants: tuple[GrantedWorkers, ...]
    """Of satellites that have not ended."""


@dataclass(frozen=True, slots=True)
class FlexDescription:
    """What the application is submitted with."""

    name: str
    tag: str
    """Names the base application."""
    token_at: str = ""
    """The address to which a container brings the token; "": the ResourceManager gives it."""


@dataclass
class _Satellite:
    id: str
    ask: Ask
    grant: GrantedWorkers
    container: pb.ContainerId | None = None
    started: bool = False


class FlexApplication:
    """See the module. Any thread may call it. `open_client`: a new connection to the ResourceManager."""

    def __init__(
        self,
        open_client: Callable[[], ResourceManager],
        scheduler: Servers,
        description: FlexDescription,
        launch: Launch,
        notice: Callable[[str, str], None],
        state_changed: Callable[[FlexState | None], None],
    ) -> None:
        """`notice`: called for a satellite that YARN is about to take. `state_changed`: after changes."""
        self._open_client = open_client
        self._scheduler = scheduler
        self._description = description
        self._launch = launch
        self._notice = notice
        self._state_changed = state_changed
        self._opening = threading.Lock()
        self._changed = threading.Condition()
        self._satellites: dict[int, _Satellite] = {}
        """By priority, those that have not ended."""
        self._running: _Running | None = None

    def submit(self, grant: GrantedWorkers, resource: pb.Resource) -> str:
        """Ask for the container of a grant; return the satellite's id. Raises Refused."""
        try:
            priority = grant_priority(grant.grant_id)
            running = self._opened(split(grant.partition)[0], grant.time_limit_s)
        except (IpcError, ApplicationGone, ValueError) as error:
            raise Refused(str(error)) from error
        with self._changed:
            ask = _ask(priority, resource, grant)
            satellite = _Satellite(str(satellite_number(running.id, ask.priority)), ask, grant)
            self._satellites[ask.priority] = satellite
        self.tell_state()
        running.beats.post(lambda: running.master.ask(ask))
        return satellite.id

    def find(self) -> list[Found]:
        """All satellites that have not ended."""
        with self._changed:
            return [
                Found(each.id, each.grant.grant_id, each.grant.node, each.grant.workers, each.started)
                for each in self._satellites.values()
            ]

    def status(self, ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """The status of each of these satellites that has not ended."""
        wanted = set(ids)
        with self._changed:
            return {
                each.id: SatelliteStatus(
                    placed=each.container is not None,
                    reason="" if each.container else f"no room yet on {each.grant.node}",
                )
                for each in self._satellites.values()
                if each.id in wanted
            }

    def cancel(self, ids: Iterable[str], within_s: float) -> None:
        """End satellites: those that run get `within_s` to end in order. Raises Refused."""
        wanted, deadline = set(ids), time.monotonic() + within_s
        with self._changed:
            running = self._running
            satellites = [each for each in self._satellites.values() if each.id in wanted]
        if running is None:
            return
        for each in satellites:
            running.beats.post(partial(self._withdraw, running, each))
        self._signal([each.container for each in satellites if each.container and each.started])
        with self._changed:
            while left := [each for each in self._satellites.values() if each.id in wanted]:
                if (left_s := deadline - time.monotonic()) <= 0:
                    break
                self._changed.wait(left_s)
        for each in left:
            self._stop(running, each)

    def finish(self) -> None:
        """End the application, with all satellites that are left. Raises IpcError, ApplicationGone."""
        with self._changed:
            running, self._running = self._running, None
        if running is not None:
            running.beats.close()
            running.master.finish(pb.APP_SUCCEEDED, "the job has ended")
            if self._description.token_at:
                self._end_own_container(running.id)

    def end_forgotten(self) -> None:
        """End what earlier attempts of the ApplicationMaster have opened, where nobody has kept its token.

        Another user's application with the same tag is left alone: YARN refuses. Raises IpcError.
        """
        client = self._open_client()
        try:
            for report in client.applications(states=ALIVE, tags=[self._description.tag]):
                with suppress(RemoteError):
                    client.kill(report.application_id, "the job has lost its token")
        finally:
            client.close()

    def resume(self, state: FlexState, amount: Callable[[int], pb.Resource]) -> None:
        """Go on with an application that an earlier attempt of the ApplicationMaster has opened, if it runs.

        `amount`: what so many workers take. Raises IpcError, ApplicationGone.
        """
        client = self._open_client()
        try:
            report = client.application(state.application)
            if report.state != pb.RUNNING:
                return
            held = {
                each.priority.priority: each.container_id
                for each in living(client.containers(report.current_attempt_id))
                if each.priority.priority != OWN_PRIORITY
            }
        finally:
            client.close()
        master = ApplicationMaster(self._scheduler, state.token)
        master.register()
        with self._opening, self._changed:
            for grant in state.grants:
                priority = grant_priority(grant.grant_id)
                if (container := held.pop(priority, None)) is not None:
                    ask = _ask(priority, amount(grant.workers), grant)
                    number = str(satellite_number(state.application, priority))
                    self._satellites[priority] = _Satellite(number, ask, grant, container, started=True)
            running = _Running(state.application, master, state.token, state.ends_at, self)
            self._running = running
        running.beats.post(lambda: master.release(held.values()))  # nobody knows what they were for
        self.tell_state()

    def tell_state(self) -> None:
        """Tell the present state, for the next attempt of the ApplicationMaster."""
        with self._changed:
            running, grants = self._running, tuple(each.grant for each in self._satellites.values())
        state = None if running is None else FlexState(running.id, running.token, running.ends_at, grants)
        self._state_changed(state)

    # --- the application ----------------------------------------------------------------------------------

    def _opened(self, queue: str, time_limit_s: int) -> _Running:
        with self._opening:
            running = self._running
            if running is None:
                running = self._running = self._open(queue, time_limit_s)
            elif running.ends_at < time.time() + time_limit_s:
                self._extend(running, time.time() + time_limit_s)
            return running

    def _extend(self, running: _Running, ends_at: float) -> None:
        """Set the lifetime. Raises IpcError, but not if YARN takes this job's token no more.

        Such tokens of Kerberos last for seven days. flexod extends the lifetime too.
        """
        client = self._open_client()
        try:
            client.set_lifetime(running.id, ends_at)
            running.ends_at = ends_at
        except NotLetIn as error:
            say(f"only flexod extends the time of this job's satellites from now on: {error}")
        finally:
            client.close()

    def _open(self, queue: str, time_limit_s: int) -> _Running:
        """Submit the application and register. Raises IpcError, Refused."""
        client = self._open_client()
        try:
            context = self._submission(client, queue, time_limit_s)
            if self._description.token_at:
                token = self._brought_token(client, context)
            else:
                client.submit(context)
                token = self._token(client, context)
        finally:
            client.close()
        master = ApplicationMaster(self._scheduler, token)
        master.register()
        return _Running(context.application_id, master, token, time.time() + time_limit_s, self)

    def _brought_token(self, client: ResourceManager, context: pb.ApplicationSubmissionContext) -> Token:
        """Submit the application with a container of its own, which brings the token."""
        try:
            receiver = TokenReceiver(self._description.token_at)
        except OSError as error:
            raise Refused(f"nothing can listen on {self._description.token_at}: {error}") from error
        try:
            context.unmanaged_am, context.max_attempts = False, 1
            context.resource.CopyFrom(CONTAINER)
            context.am_container.CopyFrom(receiver.launch())
            client.submit(context)
            token = receiver.token(context.application_id, TOKEN_WITHIN_S)
        finally:
            receiver.close()
        if token is None:
            report = client.application(context.application_id)
            client.kill(context.application_id, "its container did not start in time")
            raise Refused(
                f"YARN has started no container in {context.queue} within {TOKEN_WITHIN_S:.0f} s: "
                f"{report.diagnostics.strip() or pb.ApplicationState.Name(report.state)}"
            )
        return token

    def _submission(
        self, client: ResourceManager, queue: str, time_limit_s: int
    ) -> pb.ApplicationSubmissionContext:
        lifetime = pb.ApplicationTimeout(type=pb.APP_TIMEOUT_LIFETIME, timeout=time_limit_s)
        return pb.ApplicationSubmissionContext(
            application_id=client.new_application().application_id,
            name=self._description.name,
            queue=queue,
            unmanaged_am=True,
            application_type=APPLICATION_TYPE,
            keep_containers_across_attempts=True,
            tags=[self._description.tag],
            resource=pb.Resource(memory=1, virtual_cores=1),
            am_container=pb.ContainerLaunchContext(),
            timeouts=[lifetime],
        )

    def _token(self, client: ResourceManager, context: pb.ApplicationSubmissionContext) -> Token:
        deadline = time.monotonic() + ACCEPTED_WITHIN_S
        while time.monotonic() < deadline:
            report = client.application(context.application_id)
            if report.state == pb.ACCEPTED and report.HasField("am_rm_token"):
                return report.am_rm_token
            if report.state in ENDED:
                raise Refused(f"YARN refuses an application in {context.queue}: {report.diagnostics}")
            time.sleep(_LOOK_S)
        client.kill(context.application_id, "it was not accepted in time")
        raise Refused(f"YARN has not accepted an application in {context.queue}")

    def _end_own_container(self, application: pb.ApplicationId) -> None:
        """End the application's own container: YARN would wait ten minutes for it."""
        client = self._open_client()
        try:
            attempt = client.application(application).current_attempt_id
            for each in living(client.containers(attempt)):
                if each.priority.priority == OWN_PRIORITY:
                    client.signal(each.container_id, pb.FORCEFUL_SHUTDOWN)
        except IpcError as error:
            say(f"a container of the satellites' application ends some minutes later: {error}")
        finally:
            client.close()

    def _signal(self, containers: list[pb.ContainerId]) -> None:
        """Send SIGTERM. A container that YARN does not reach is stopped later."""
        if not containers:
            return
        client = self._open_client()
        try:
            client.signal_all(containers, pb.GRACEFUL_SHUTDOWN)
        except IpcError as error:
            say(f"satellites are stopped, because YARN does not pass a signal on to them: {error}")
        finally:
            client.close()

    # --- in the thread of heartbeats ----------------------------------------------------------------------

    def hear(self, running: _Running, result: HeartbeatResult) -> None:
        """Take what a heartbeat has brought."""
        for container in result.allocated:
            self._allocated(running, container)
        with self._changed:
            ended = {container_text(each.container_id) for each in result.completed}
            for priority, each in list(self._satellites.items()):
                text = container_text(each.container) if each.container else ""
                if text in ended:
                    del self._satellites[priority]
                elif text in result.preempted:
                    self._notice(each.id, _PREEMPTED)
            self._changed.notify_all()
        if ended or running.token != running.master.token:
            running.token = running.master.token
            self.tell_state()

    def gone(self, running: _Running, why: str) -> None:
        """YARN has ended the application, and all of its containers."""
        with self._changed:
            if self._running is running:
                self._running = None
            self._satellites.clear()
            self._changed.notify_all()
        self.tell_state()
        say(f"YARN has ended this job's satellites: {why}")

    def _allocated(self, running: _Running, container: pb.Container) -> None:
        with self._changed:
            satellite = self._satellites.get(container.priority.priority)
            if satellite is None or satellite.container is not None:
                running.master.release([container.id])
                return
            satellite.container = container.id
        threads.start(lambda: self._start(running, satellite, container), name="start", failed=say_error)

    def _start(self, running: _Running, satellite: _Satellite, container: pb.Container) -> None:
        try:
            running.node_managers.start(container, self._launch(satellite.grant, satellite.id))
        except (IpcError, ContainerRefused) as error:
            say(f"{container.node_id.host} does not start a satellite: {error}")
            running.beats.post(lambda: running.master.release([container.id]))
        else:
            satellite.started = True

    def _withdraw(self, running: _Running, satellite: _Satellite) -> None:
        """Withdraw a satellite's request; forget the satellite if nothing came of it."""
        running.master.withdraw(satellite.ask.priority)
        with self._changed:
            if satellite.container is None:
                self._satellites.pop(satellite.ask.priority, None)
                self._changed.notify_all()

    def _stop(self, running: _Running, satellite: _Satellite) -> None:
        if (container := satellite.container) is not None:
            running.beats.post(lambda: running.master.release([container]))


def _ask(priority: int, resource: pb.Resource, grant: GrantedWorkers) -> Ask:
    """The request for a grant's container."""
    return Ask(priority, resource, node=grant.node, label=split(grant.partition)[1])


class _Running:
    """A flex application that runs, with its thread."""

    def __init__(
        self,
        application: pb.ApplicationId,
        master: ApplicationMaster,
        token: Token,
        ends_at: float,
        flex: FlexApplication,
    ) -> None:
        self.id = application
        self.master = master
        self.token = token
        """As the job's leader knows it, for the next attempt of the ApplicationMaster."""
        self.ends_at = ends_at
        """The end of its lifetime, as far as this process knows (seconds since 1970)."""
        self.node_managers = NodeManagers(master.nm_tokens)
        self.beats = Heartbeats(
            master, lambda result: flex.hear(self, result), lambda why: flex.gone(self, why), "flex"
        )
