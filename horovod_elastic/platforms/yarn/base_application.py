"""The base application of a job: its gang, and the containers in which the agents of the base run.

A container runs one process and ends with it. An agent that is started again gets another container, on the
same node.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.application_master import ApplicationMaster, Ask, HeartbeatResult
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.node_managers import ContainerRefused, NodeManagers
from flexo_yarn.records import container_text
from horovod_elastic.job_plan import BaseNode
from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.platforms.yarn.gang import Gang
from horovod_elastic.platforms.yarn.heartbeats import Heartbeats
from horovod_elastic.trace import say

GANG_PRIORITY: Final = 1
ANOTHER_WITHIN_S: Final = 60.0
"""Longest wait for the container in which an agent is started again."""
KILLED: Final = 137
_LOST = pb.ContainerStatus(exit_status=-100, diagnostics="it was not started")
Launch = Callable[[str], pb.ContainerLaunchContext]


def host_of(node: str) -> str:
    """The host of a node of the base. Several containers on one host are several nodes: "h1", "h1~2"."""
    return node.partition("~")[0]


class BaseContainer:
    """The AgentProcess of one node of the base."""

    def __init__(self, application: BaseApplication, node: str) -> None:
        self._application = application
        self._node = node
        self.container: pb.Container | None = None
        """None until YARN has allocated it."""
        self.status: pb.ContainerStatus | None = None
        """Set when it has ended."""

    def wait(self) -> int:
        """See AgentProcess. YARN's own exit statuses, which are negative, count as SIGKILL."""
        status = self._application.wait_for_end(self)
        if status.exit_status < 0:
            say(f"YARN has ended the container on {self._node} ({status.exit_status}): {status.diagnostics}")
            return KILLED
        return int(status.exit_status)

    def terminate(self) -> None:
        """See AgentProcess. YARN sends SIGTERM, and after a few seconds SIGKILL."""
        self._application.stop(self)

    def kill(self) -> None:
        """See AgentProcess."""
        self._application.stop(self)


class BaseApplication:
    """See the module. `master` has registered; `ask` is for all of the gang's containers."""

    def __init__(self, master: ApplicationMaster, ask: Ask) -> None:
        self._master = master
        self._ask = ask
        self._node_managers = NodeManagers(master.nm_tokens)
        self._changed = threading.Condition()
        self._containers: dict[str, pb.Container] = {}
        """By node: containers that no agent has been started in yet."""
        self._running: dict[str, BaseContainer] = {}
        """By the container's text."""
        self._awaited: dict[int, BaseContainer] = {}
        """By priority: those whose container is asked for again."""
        self._priority = GANG_PRIORITY
        self._gone = ""
        self._gang = Gang(master, ask)
        self._beats = Heartbeats(master, self._hear, self._end, "base")

    @property
    def gone(self) -> str:
        """Why YARN has ended the application; "" while it goes on."""
        return self._gone

    def form(self) -> tuple[BaseNode, ...]:
        """Wait for all of the gang's containers; return the nodes of the base. Raises NotInAJob."""
        said = 0.0
        with self._changed:
            while not self._containers:
                if self._gone:
                    raise NotInAJob(f"YARN has ended the application: {self._gone}")
                if time.monotonic() > said + 60:
                    said = time.monotonic()
                    say(f"waiting for {self._ask.containers} containers")
                self._changed.wait(1.0)
            return tuple(BaseNode(name, 1) for name in self._containers)

    def launch(self, node: str, launch: pb.ContainerLaunchContext) -> BaseContainer:
        """Start a program on a node of the base, in another container than before if there was one.

        Raises OSError.
        """
        process = BaseContainer(self, node)
        with self._changed:
            container = self._containers.pop(node, None)
            if self._gone:
                raise OSError(f"YARN has ended the application: {self._gone}")
            if container is None:
                container = self._another(process, node)
            process.container = container
            self._running[container_text(container.id)] = process
        try:
            self._node_managers.start(container, launch)
        except (IpcError, ContainerRefused) as error:
            self._beats.post(lambda: self._master.release([container.id]))
            raise OSError(f"{host_of(node)} does not start a container: {error}") from error
        return process

    def wait_for_end(self, process: BaseContainer) -> pb.ContainerStatus:
        """Wait until a container has ended."""
        with self._changed:
            while process.status is None:
                if self._gone:
                    return _LOST
                self._changed.wait()
            return process.status

    def stop(self, process: BaseContainer) -> None:
        """Have a container ended. Does nothing if it has ended."""
        container = process.container
        if container is None or process.status is not None:
            return
        try:
            self._node_managers.stop(container.node_id, container.id)
        except (IpcError, ContainerRefused):
            self._beats.post(lambda: self._master.release([container.id]))

    def containers(self) -> list[pb.ContainerId]:
        """The containers that run."""
        with self._changed:
            return [each.container.id for each in self._running.values() if each.container is not None]

    def finish(self, succeeded: bool, diagnostics: str) -> None:
        """End the application. Raises IpcError, ApplicationGone."""
        self._beats.close()
        self._master.finish(pb.APP_SUCCEEDED if succeeded else pb.APP_FAILED, diagnostics)

    def _another(self, process: BaseContainer, node: str) -> pb.Container:
        """Wait for another container on the same node. Raises OSError. The caller holds the lock."""
        self._priority += 1
        ask = Ask(self._priority, self._ask.resource, node=host_of(node), label=self._ask.label)
        self._awaited[ask.priority] = process
        self._beats.post(lambda: self._master.ask(ask))
        deadline = time.monotonic() + ANOTHER_WITHIN_S
        while process.container is None and not self._gone:
            if (left := deadline - time.monotonic()) <= 0:
                break
            self._changed.wait(left)
        self._awaited.pop(ask.priority, None)
        if process.container is None:
            self._beats.post(lambda: self._master.withdraw(ask.priority))
            raise OSError(f"YARN allocates no other container on {host_of(node)}")
        return process.container

    # --- in the thread of heartbeats ----------------------------------------------------------------------

    def _hear(self, result: HeartbeatResult) -> None:
        with self._changed:
            if not self._gang.is_complete:
                self._gang.handle(result, time.monotonic())
                if self._gang.is_complete:
                    self._containers = _by_node(self._gang.containers)
            for container in result.allocated:
                self._take(container)
            for status in result.completed:
                process = self._running.pop(container_text(status.container_id), None)
                if process is not None:
                    process.status = status
            self._changed.notify_all()

    def _take(self, container: pb.Container) -> None:
        if container.priority.priority == GANG_PRIORITY:
            return
        process = self._awaited.pop(container.priority.priority, None)
        if process is None:
            self._master.release([container.id])
        else:
            process.container = container

    def _end(self, why: str) -> None:
        with self._changed:
            self._gone = why
            self._changed.notify_all()


def _by_node(containers: tuple[pb.Container, ...]) -> dict[str, pb.Container]:
    counted: Counter[str] = Counter()
    found = {}
    for container in sorted(containers, key=lambda each: (each.node_id.host, each.id.id)):
        host = container.node_id.host
        counted[host] += 1
        found[host if counted[host] == 1 else f"{host}~{counted[host]}"] = container
    return found
