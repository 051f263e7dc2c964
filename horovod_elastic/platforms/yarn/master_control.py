"""The JobControl in the ApplicationMaster's own process: both applications of a job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.resources import Resources, rounded_up
from flexo_protos.v1 import yarn_pb2
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.records import resource
from flexo_yarn.resource_manager import ResourceManager
from horovod_elastic import wire
from horovod_elastic.job_plan import JobPlan
from horovod_elastic.platforms.base import (
    ENDS_WITHIN_S,
    JOB_VARIABLE,
    NODE_VARIABLE,
    VARIABLE,
    BaseState,
    Found,
    GrantedWorkers,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.platforms.yarn import messages
from horovod_elastic.platforms.yarn.base_application import BaseApplication, BaseContainer
from horovod_elastic.platforms.yarn.environment import KIND_NAME, PART, RUN
from horovod_elastic.platforms.yarn.flex_application import FlexApplication, FlexState
from horovod_elastic.platforms.yarn.template import Template

MOST_NOTICES = 1000
"""Notices of preemption that wait for a leader."""


def container_of(amount: Resources) -> pb.Resource:
    """The container that has this amount; YARN counts whole GPUs."""
    return resource(amount.memory_mib, amount.cpus, rounded_up(amount.gpus, 1))


class MasterControl:
    """JobControl over YARN's protocols. Satellites are in the flex application."""

    name = "YARN"

    def __init__(
        self,
        plan: JobPlan,
        command: Sequence[str],
        template: Template,
        base: BaseApplication,
        open_client: Callable[[], ResourceManager],
        *,
        resumed: bool,
    ) -> None:
        """`resumed`: an earlier attempt of the ApplicationMaster has started the agents of the base."""
        self._plan = plan
        self._command = list(command)
        self._template = template
        self._base = base
        self._open_client = open_client
        self._resumed = resumed
        self.flex: FlexApplication | None = None
        """The application of satellites, once it is known."""
        self.announcements = Announcements()
        """What the leader has to know."""

    def resource(self, workers: int) -> pb.Resource:
        """What the container of so many workers takes."""
        return container_of(self._plan.base.shape * workers)

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> BaseContainer:
        """See JobControl."""
        told = ["--base", "--pass-signals", *(["--again"] if again or self._resumed else [])]
        return self._base.launch(node, self._part(node, workers, self._plan.base.job_id, told))

    def launch_satellite(self, grant: GrantedWorkers, satellite_id: str) -> pb.ContainerLaunchContext:
        """What the container of a grant runs."""
        told = ["--pass-signals", "--grant", grant.grant_id]
        return self._part(grant.node, grant.workers, satellite_id, told)

    def terminate_base(self) -> None:
        """See JobControl."""
        with self._client() as client:
            client.signal_all(self._base.containers(), pb.GRACEFUL_SHUTDOWN)

    def base_state(self) -> BaseState:
        """See JobControl. YARN suspends nothing."""
        return BaseState.ENDED if self._base.gone else BaseState.RUNS

    def submit(self, grant: GrantedWorkers) -> str:
        """See JobControl."""
        return self._flex().submit(grant, self.resource(grant.workers))

    def find(self) -> list[Found]:
        """See JobControl."""
        return self._flex().find()

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """See JobControl."""
        return self._flex().status(satellite_ids)

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        """See JobControl."""
        self._flex().cancel(satellite_ids, within_s)

    def how_to_cancel(self, satellite_ids: Iterable[str]) -> str:
        """See JobControl."""
        raise Refused("the job's leader tells the user")

    def _flex(self) -> FlexApplication:
        if self.flex is None:
            raise Refused("this job has no application for satellites: it was not submitted with --elastic")
        return self.flex

    def _part(self, node: str, workers: int, part: str, told: Sequence[str]) -> pb.ContainerLaunchContext:
        gpus = rounded_up(self._plan.base.shape.gpus * workers, 1)
        arguments = [
            *("--gpus", str(gpus), "--", "--slots", str(workers), "--job", self._plan.to_text()),
            *(*told, "--", *self._command),
        ]
        variables = {
            VARIABLE: KIND_NAME,
            NODE_VARIABLE: node,
            JOB_VARIABLE: self._plan.base.job_id,
            PART: part,
            RUN: str(self._plan.base.restart_count),
        }
        return self._template.for_part(arguments, variables)

    @contextmanager
    def _client(self) -> Iterator[ResourceManager]:
        client = self._open_client()
        try:
            yield client
        except IpcError as error:
            raise Refused(str(error)) from error
        finally:
            client.close()


class Announcements:
    """Messages for the leader that is attached; notices of preemption are kept while none is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[yarn_pb2.FromMaster | None] = queue.SimpleQueue()
        self._notices: list[yarn_pb2.FromMaster] = []
        """Those since the last leader has begun to listen; a new one may have missed them."""
        self._state = yarn_pb2.FromMaster(state=yarn_pb2.MasterState())

    def preemption(self, satellite_id: str, reason: str) -> None:
        """YARN is about to take a satellite. Any thread may call it."""
        notice = yarn_pb2.PreemptionNotice(satellite_id=wire.job_number(satellite_id), reason=reason)
        with self._lock:
            message = yarn_pb2.FromMaster(preemption=notice)
            self._notices = [*self._notices[-MOST_NOTICES:], message]
            self._queue.put(message)

    def flex_state(self, state: FlexState | None) -> None:
        """The flex application has changed. Any thread may call it."""
        with self._lock:
            self._state = yarn_pb2.FromMaster(state=messages.of_state(state))
            self._queue.put(self._state)

    def listen(self) -> queue.SimpleQueue[yarn_pb2.FromMaster | None]:
        """The present state, recent notices, and all that follows. An earlier listener gets None, its end."""
        with self._lock:
            before, self._queue = self._queue, queue.SimpleQueue()
            for message in (self._state, *self._notices):
                self._queue.put(message)
            self._notices.clear()
            before.put(None)
            return self._queue
