"""The base application of a job: its gang, and the containers in which the agents of the base run.

Each container of the base has a priority of its own (flexo_yarn/runs.py), as YARN's reports name nothing else
that the job has chosen. A container runs one process and ends with it. An agent that is started again gets
another container of the same priority on the same host.

YARN may take a container back, or lose its node. Then all of the gang is given back, and the job begins anew.

Containers outlive their ApplicationMaster. The next attempt of it gets them from YARN, and the job's plan,
which says what they run, from the job's leader.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.application_master import ApplicationMaster, Ask, HeartbeatResult
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.node_managers import ContainerRefused, NodeManagers
from flexo_yarn.records import OWN_PRIORITY, container_text
from flexo_yarn.runs import priority_of, run_of
from horovod_elastic.job_plan import BaseNode, host_of, part_of
from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.platforms.yarn.gang import Gang
from horovod_elastic.platforms.yarn.heartbeats import Heartbeats
from horovod_elastic.trace import say

ANOTHER_WITHIN_S: Final = 60.0
"""Longest wait for the container in which an agent is started again."""
SAID_EVERY_S: Final = 60.0
KILLED: Final = 137
TAKEN: Final = frozenset({-100, -102})
"""YARN's own exit statuses of a container on a lost node, and of one that it has preempted."""
_LOST = pb.ContainerStatus(exit_status=-100, diagnostics="YARN has ended the application")


class BaseContainer:
    """The AgentProcess of one node of the base."""

    def __init__(self, application: BaseApplication, node: str, container: pb.Container) -> None:
        self._application = application
        self._node = node
        self.container = container
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
    """See the module. `master` has registered, and then had the containers `kept` of earlier attempts."""

    def __init__(
        self,
        master: ApplicationMaster,
        kept: Sequence[pb.Container],
        resource: pb.Resource,
        on_taken: Callable[[str], None],
    ) -> None:
        """`on_taken`: called once in a run, with the reason, when YARN takes or loses what it had given."""
        self._master = master
        self._on_taken = on_taken
        self._resource = resource
        self._node_managers = NodeManagers(master.nm_tokens)
        self._changed = threading.Condition()
        self._kept = {each.priority.priority: each for each in kept}
        self._run: int | None = None
        """The present run; None: not yet known."""
        self._slots: dict[str, int] = {}
        """By node: the priority of its container in this run."""
        self._idle: dict[int, pb.Container] = {}
        """By priority: containers that no agent has been started in yet."""
        self._running: dict[str, BaseContainer] = {}
        """By the container's text."""
        self._ended: dict[str, pb.ContainerStatus] = {}
        """Containers that ended before anybody waited for them, by text."""
        self._awaited: set[int] = set()
        """Priorities of containers that are asked for again."""
        self._gang: Gang | None = None
        self._stopped: set[str] = set()
        """Containers that this process has ended, by text."""
        self._taken = ""
        self._gone = ""
        self._beats = Heartbeats(master, self._hear, self._end, "base")

    @property
    def gone(self) -> str:
        """Why YARN has ended the application; "" while it goes on."""
        return self._gone

    @property
    def taken(self) -> str:
        """Why this run has to begin anew; "" while it goes on."""
        return self._taken

    @property
    def keeps(self) -> bool:
        """Whether containers of an earlier attempt are there."""
        return bool(self._kept)

    def adopt(self, nodes: Sequence[BaseNode], run: int) -> None:
        """Go on with the containers of an earlier attempt. `nodes`: of the job's plan, by priority."""
        with self._changed:
            self._run = run
            self._slots = {node.name: priority_of(run, slot) for slot, node in enumerate(nodes, 1)}

    def give_up_kept(self) -> None:
        """Release the containers of earlier attempts."""
        with self._changed:
            kept, self._kept = self._kept, {}
        if kept:
            self._beats.post(lambda: self._master.release([each.id for each in kept.values()]))

    def give_back(self) -> None:
        """Release all containers of this run: the next one begins."""
        with self._changed:
            running = [each.container.id for each in self._running.values()]
            left = [*running, *(each.id for each in self._idle.values())]
            for process in self._running.values():
                process.status = _LOST
            self._running.clear()
            self._idle.clear()
            self._slots.clear()
            self._stopped.clear()
            self._taken = ""
            self._changed.notify_all()
        self._beats.post(lambda: self._master.release(left))

    def form(self, containers: int, run: int) -> tuple[BaseNode, ...]:
        """Wait for a gang of so many containers; return the nodes of the base. Raises NotInAJob."""
        with self._changed:
            self._run = run
        self.give_up_kept()
        asks = [Ask(priority_of(run, slot), self._resource) for slot in range(1, containers + 1)]
        self._beats.post(lambda: self._begin(asks))
        said = time.monotonic()
        with self._changed:
            while not self._idle:
                if self._gone:
                    raise NotInAJob(f"YARN has ended the application: {self._gone}")
                if time.monotonic() > said + SAID_EVERY_S:
                    said = time.monotonic()
                    say(f"waiting for {containers} containers")
                self._changed.wait(1.0)
            names = _names([self._idle[slot] for slot in sorted(self._idle)])
            self._slots = dict(zip(names, sorted(self._idle), strict=True))
            return tuple(BaseNode(name, 1) for name in names)

    def launch(self, node: str, launch: pb.ContainerLaunchContext) -> BaseContainer:
        """Start a program on a node of the base, or go on with the one that an earlier attempt has started.

        Raises OSError.
        """
        with self._changed:
            if self._gone:
                raise OSError(f"YARN has ended the application: {self._gone}")
            slot = self._slots[node]
            if kept := self._kept.pop(slot, None):
                return self._watched(node, kept)
            container = self._idle.pop(slot, None) or self._another(node, slot)
            process = self._watched(node, container)
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
        if process.status is not None:
            return
        with self._changed:
            self._stopped.add(container_text(container.id))
        try:
            self._node_managers.stop(container.node_id, container.id)
        except (IpcError, ContainerRefused):
            self._beats.post(lambda: self._master.release([container.id]))

    def states(self) -> list[tuple[str, str]]:
        """Each node of the base, and whether its agent runs."""
        with self._changed:
            running = {each.container.priority.priority for each in self._running.values()}
            return [
                (node, "running" if slot in running else "starting") for node, slot in self._slots.items()
            ]

    def containers(self) -> list[pb.ContainerId]:
        """The containers that run."""
        with self._changed:
            return [each.container.id for each in self._running.values()]

    def finish(self, succeeded: bool, diagnostics: str) -> None:
        """End the application. Raises IpcError, ApplicationGone."""
        self._beats.close()
        self._master.finish(pb.APP_SUCCEEDED if succeeded else pb.APP_FAILED, diagnostics)

    def _watched(self, node: str, container: pb.Container) -> BaseContainer:
        """The process of a container, which may have ended already. The caller holds the lock."""
        process, text = BaseContainer(self, node, container), container_text(container.id)
        process.status = self._ended.pop(text, None)
        if process.status is None:
            self._running[text] = process
        return process

    def _another(self, node: str, slot: int) -> pb.Container:
        """Wait for another container on the same host. Raises OSError. The caller holds the lock."""
        ask = Ask(slot, self._resource, node=host_of(node))
        self._awaited.add(slot)
        self._beats.post(lambda: self._master.ask(ask))
        deadline = time.monotonic() + ANOTHER_WITHIN_S
        while slot not in self._idle and not self._gone and (left := deadline - time.monotonic()) > 0:
            self._changed.wait(left)
        self._awaited.discard(slot)
        if (container := self._idle.pop(slot, None)) is None:
            self._beats.post(lambda: self._master.withdraw(slot))
            why = f"YARN allocates no other container on {host_of(node)}"
            if not self._taken and not self._gone:
                self._taken = why  # the node may be lost: the job can begin anew elsewhere
                self._on_taken(why)
            raise OSError(why)
        return container

    # --- in the thread of heartbeats ----------------------------------------------------------------------

    def _begin(self, asks: Sequence[Ask]) -> None:
        self._gang = Gang(self._master, asks)

    def _hear(self, result: HeartbeatResult) -> None:
        with self._changed:
            gang = self._gang
            if gang is not None:
                gang.handle(result, time.monotonic())
                if gang.is_complete:
                    self._idle = {each.priority.priority: each for each in gang.containers}
                    self._gang = None
            else:
                for container in result.allocated:
                    self._take(container)
            for container in result.recovered:
                self._recover(container)
            taken = self._take_notice(result)
            for status in result.completed:
                self._note_end(status)
            self._changed.notify_all()
        if taken:
            self._on_taken(taken)

    def _take_notice(self, result: HeartbeatResult) -> str:
        """Why this run has to begin anew, if that is new; else "". The caller holds the lock."""
        if self._taken:
            return ""
        if warned := self._running.keys() & result.preempted:
            self._taken = f"YARN takes {len(warned)} of its containers for another application"
        for status in result.completed:
            text = container_text(status.container_id)
            if status.exit_status in TAKEN and text in self._running and text not in self._stopped:
                self._taken = f"YARN has ended {text} ({status.exit_status}): {status.diagnostics}"
        return self._taken

    def _take(self, container: pb.Container) -> None:
        slot = container.priority.priority
        if slot in self._awaited:
            self._idle[slot] = container
        else:
            self._master.release([container.id])

    def _recover(self, container: pb.Container) -> None:
        """Take note of a container of an earlier attempt that YARN names late: after a restart, its node was
        not back when this attempt registered.

        What belongs to the present run runs already, or is about to be allocated.
        """
        run = run_of(priority := container.priority.priority)
        if self._run is None:
            self._kept.setdefault(priority, container)
        elif run != self._run and priority != OWN_PRIORITY:
            self._master.release([container.id])

    def _note_end(self, status: pb.ContainerStatus) -> None:
        text = container_text(status.container_id)
        if process := self._running.pop(text, None):
            process.status = status
        elif any(container_text(each.id) == text for each in self._kept.values()):
            self._ended[text] = status

    def _end(self, why: str) -> None:
        with self._changed:
            self._gone = why
            self._changed.notify_all()


def _names(containers: Sequence[pb.Container]) -> list[str]:
    """Names of nodes, each once: the container's host, with a number from the second on one host."""
    counted: Counter[str] = Counter()
    names = []
    for container in containers:
        host = container.node_id.host
        counted[host] += 1
        names.append(part_of(host, counted[host]))
    return names
