"""The agent's connection to the supervisor of its node (supervisor.py): the agent starts and kills workers
through it, and hears of workers that have ended.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import threads
from horovod_elastic.agent.supervisor import SOCKET_VARIABLE


class NoSupervisor(Exception):
    """The agent was not started by a supervisor."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A worker that was there before this agent."""

    order: pb.StartWorker
    spoke: bool
    """Whether the worker had connected to the earlier agent; it will then connect to this one."""


class SupervisorLink:
    """See the module. All methods are called by the agent's main thread."""

    def __init__(self) -> None:
        """Raises NoSupervisor."""
        descriptor = os.environ.pop(SOCKET_VARIABLE, "")
        if not descriptor:
            raise NoSupervisor("agents are started by their supervisor (`python .../agent/supervisor.py`)")
        self._environment = dict(os.environ)
        """The environment of this process, which is the supervisor's as well."""
        os.set_inheritable(int(descriptor), False)
        self._socket = socket.socket(fileno=int(descriptor))
        self._lines = self._socket.makefile("rb")
        hello = json.loads(self._lines.readline())
        self.endpoint: str = hello["endpoint"]
        """The address at which this node's workers connect to their agent."""
        self.secret: str = hello["secret"]
        """The secret that workers present to their agent."""
        self.again: bool = hello["again"]
        """Whether another agent was here before."""
        self.terminated: bool = hello["terminated"]
        """Whether SIGTERM has come already."""
        self.heard_at = time.monotonic()
        """Time of the supervisor's last message; the supervisor answers every `alive`."""
        self.kept = [Kept(_order(each["note"]), each["spoke"]) for each in hello["workers"]]

    @property
    def folder(self) -> Path:
        """The node's own folder for the sockets of this job."""
        return Path(self.endpoint.removeprefix("unix:")).parent

    def keeps(self, worker_id: str) -> bool:
        """Whether an earlier agent has started this process, and its end was not heard yet."""
        return any(kept.order.worker_id == worker_id for kept in self.kept)

    def listen(
        self,
        ended: Callable[[str, int, str], None],
        terminated: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Call these functions on the supervisor's messages, in a new thread.

        `ended`: called with an ended worker's id, its exit code, and why its command could not be run.
        `terminated`: called when SIGTERM has come. `failed`: called when no message can be read any more.
        """

        def listen() -> None:
            for line in self._lines:
                self.heard_at = time.monotonic()
                message = json.loads(line)
                if "ended" in message:
                    ended(message["ended"], message["code"], message["error"])
                elif "terminated" in message:
                    terminated()

        threads.start(listen, name="supervisor", failed=failed)

    def start(
        self, order: pb.StartWorker, command: Sequence[str], environment: Mapping[str, str], *, deaf: bool
    ) -> None:
        """Start a worker. `deaf`: the worker ignores SIGTERM at first."""
        known = self._environment
        changed = {name: value for name, value in environment.items() if known.get(name) != value}
        self._tell(
            "start",
            order.worker_id,
            note=base64.b64encode(order.SerializeToString()).decode(),
            command=list(command),
            environment=changed,
            without=[name for name in known if name not in environment],
            deaf=deaf,
        )

    def kill(self, worker_id: str) -> None:
        """Send SIGKILL to a worker and all processes that it has started."""
        self._tell("kill", worker_id)

    def signal(self, worker_id: str, number: int) -> None:
        """Send a worker a signal."""
        self._tell("signal", worker_id, number=number)

    def spoke(self, worker_id: str) -> None:
        """Tell the supervisor that a worker has connected to this agent."""
        self._tell("spoke", worker_id)

    def forget(self, worker_id: str) -> None:
        """Tell the supervisor that a worker's end was passed on to the leader."""
        self._tell("forget", worker_id)

    def alive(self) -> None:
        """Tell the supervisor that this agent is alive. Call it every second."""
        self._tell("alive")

    def end_everything(self) -> None:
        """Kill the supervisor, and with it the agent and all workers of the node."""
        os.kill(os.getppid(), signal.SIGKILL)

    def end(self) -> None:
        """Tell the supervisor that this agent ends: it may take ENDS_WITHIN_S, and is not started again."""
        self._tell("end")

    def _tell(self, what: str, worker_id: str = "", **more: Any) -> None:
        self._socket.sendall(json.dumps({"do": what, "id": worker_id, **more}).encode() + b"\n")


def _order(note: str) -> pb.StartWorker:
    return pb.StartWorker.FromString(base64.b64decode(note))
