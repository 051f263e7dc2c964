"""Simulated applications: they hold containers on simulated nodes, and ask for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flexo_bench.yarn.simulated_nodes import SimulatedNode
from flexo_lab.yarn.files import ORDINARY_QUEUE
from flexo_lab.yarn.unmanaged import UnmanagedApplication, described
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import tags
from flexo_yarn.records import application_text, resource
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.site_settings import FLEX_QUEUE

WORKER_MIB = 4096
_USERS = 20
BASE_WORKERS, MOST_WORKERS = 2, 8


@dataclass(slots=True)
class SimulatedApplication:
    """An application, and the nodes that report its containers as running."""

    own: UnmanagedApplication
    nodes: Mapping[str, SimulatedNode]

    @property
    def containers(self) -> int:
        """The containers that it holds."""
        return len(self.own.held)

    def ask(self, priority: int, containers: int, gpus: int = 1, node: str = "") -> None:
        """Ask for containers of so many GPUs, with the next beat."""
        self.own.ask(priority, containers, resource(WORKER_MIB * gpus, gpus, gpus), node)

    def beat(self) -> None:
        """One heartbeat; containers that it brings run from then on."""
        for container in self.own.beat().allocated:
            self.nodes[container.node_id.host].start(container)


def ordinary(client: ResourceManager, number: int) -> pb.ApplicationSubmissionContext:
    """An application that is not flexo's."""
    return described(client, f"ordinary {number}", ORDINARY_QUEUE)


def base(client: ResourceManager, number: int) -> pb.ApplicationSubmissionContext:
    """The base application of an elastic job."""
    said = (
        f"{tags.KEY}{number:064x}",
        f"{tags.WORKER}1,1,{WORKER_MIB}",
        f"{tags.ELASTIC}{BASE_WORKERS}-{MOST_WORKERS}",
    )
    return described(client, f"base {number}", ORDINARY_QUEUE, tags.APPLICATION_TYPE, said)


def flex(client: ResourceManager, of: pb.ApplicationId) -> pb.ApplicationSubmissionContext:
    """The flex application of the base `of`."""
    name = application_text(of)
    said = (tags.BASE + name,)
    return described(client, f"satellites of {name}", FLEX_QUEUE, tags.APPLICATION_TYPE, said)


def user_of(number: int) -> str:
    """The user of the application with this number: one of a few."""
    return f"user{number % _USERS}"


def beat_until(
    what: str, applications: Sequence[SimulatedApplication], done: Callable[[], bool], limit_s: float
) -> None:
    """Let applications beat until `done`. Raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:.0f} s: {what}")
        for each in applications:
            each.beat()
        time.sleep(0.2)
