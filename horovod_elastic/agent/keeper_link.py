"""The agent's end of its talk with the keeper of its node (keeper.py): start, kill, who has ended."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import threads
from horovod_elastic.agent.keeper import SOCKET_VARIABLE


class NoKeeper(Exception):
    """An agent was started by somebody else."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A worker that was there before this agent."""

    order: pb.StartWorker
    spoke: bool
    """It had found the agent before this one, and will find this one."""


class KeeperLink:
    """See the module. All methods are called by the agent's main thread."""

    def __init__(self) -> None:
        """Raises NoKeeper."""
        descriptor = os.environ.pop(SOCKET_VARIABLE, "")
        if not descriptor:
            raise NoKeeper("agents are started by their keeper (`python .../agent/keeper.py`)")
        self._environment = dict(os.environ)
        """The keeper's as well."""
        os.set_inheritable(int(descriptor), False)
        self._socket = socket.socket(fileno=int(descriptor))
        self._lines = self._socket.makefile("rb")
        hello = json.loads(self._lines.readline())
        self.endpoint: str = hello["endpoint"]
        """Where this node's workers look for their agent."""
        self.secret: str = hello["secret"]
        """What they present to it."""
        self.again: bool = hello["again"]
        """Another agent was here before."""
        self.terminated: bool = hello["terminated"]
        """SIGTERM has come already."""
        self.heard_at = time.monotonic()
        """When the keeper was last heard of; it answers every `alive`."""
        self.kept = [Kept(_order(each["note"]), each["spoke"]) for each in hello["workers"]]

    def listen(
        self,
        ended: Callable[[str, int, str], None],
        terminated: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Have these called, in a thread of its own.

        `ended`: a worker's id, its exit code, why it could not run. `terminated`: SIGTERM has come. `failed`:
        nothing can be heard any more.
        """

        def listen() -> None:
            for line in self._lines:
                self.heard_at = time.monotonic()
                message = json.loads(line)
                if "ended" in message:
                    ended(message["ended"], message["code"], message["error"])
                elif "terminated" in message:
                    terminated()

        threads.start(listen, name="keeper", failed=failed)

    def start(
        self, order: pb.StartWorker, command: Sequence[str], environment: Mapping[str, str], *, deaf: bool
    ) -> None:
        """Start a worker; deaf: to SIGTERM, at first."""
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
        """SIGKILL to it and all that it has started."""
        self._tell("kill", worker_id)

    def signal(self, worker_id: str, number: int) -> None:
        """Send it a signal."""
        self._tell("signal", worker_id, number=number)

    def spoke(self, worker_id: str) -> None:
        """It has found this agent."""
        self._tell("spoke", worker_id)

    def forget(self, worker_id: str) -> None:
        """Its end was passed on."""
        self._tell("forget", worker_id)

    def alive(self) -> None:
        """Still here. Call it every second."""
        self._tell("alive")

    def end_everything(self) -> None:
        """Kill the keeper, and with it the agent and all workers of the node."""
        os.kill(os.getppid(), signal.SIGKILL)

    def end(self) -> None:
        """The agent ends, and may take its time for it; nobody starts it again."""
        self._tell("end")

    def _tell(self, what: str, worker_id: str = "", **more: Any) -> None:
        self._socket.sendall(json.dumps({"do": what, "id": worker_id, **more}).encode() + b"\n")


def _order(note: str) -> pb.StartWorker:
    return pb.StartWorker.FromString(base64.b64decode(note))
