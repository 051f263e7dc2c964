"""The process of all simulated nodes and applications; polling.py starts it.

It reads a Workload as JSON from its input, and prints a line of JSON for each step, then one for each
second of beating.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass

from flexo_bench.yarn import simulated_applications as applications
from flexo_bench.yarn.beating import Beating
from flexo_bench.yarn.simulated_applications import SimulatedApplication
from flexo_bench.yarn.simulated_nodes import GPUS, SimulatedNode
from flexo_lab.yarn.unmanaged import UnmanagedApplication
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.ipc.connection import Address
from flexo_yarn.resource_manager import ResourceManager

_NODE_THREADS, _APPLICATION_THREADS = 4, 2
_FULL_S = 300.0
"""Limit until the applications hold all GPUs."""
SATELLITES = 4
"""Of each elastic job, one GPU each."""
PENDING_CONTAINERS = 4
"""What each application asks for that gets nothing."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is simulated, and at which ResourceManager."""

    host: str
    """The ResourceManager's address; it has Hadoop's ports."""
    nodes: int
    node_beat_s: float
    ordinary: int
    """Applications that are not flexo's, which hold nearly all GPUs together."""
    waiting: int
    """Applications that hold nothing and ask for containers of all GPUs of a node."""
    elastic: int
    """Elastic jobs, each a base and a flex application with satellites."""
    master_beat_s: float

    @property
    def clients(self) -> Address:
        """Where it listens to clients."""
        return self.host, 8032

    @property
    def scheduler(self) -> Address:
        """Where it listens to ApplicationMasters."""
        return self.host, 8030

    @property
    def resource_tracker(self) -> Address:
        """Where it listens to NodeManagers."""
        return self.host, 8031


@dataclass(frozen=True, slots=True)
class Beats:
    """One second of beating."""

    at: float
    """time.monotonic"""
    node_beats: int
    node_late_s: float
    """The largest lateness of a node's beat."""
    master_beats: int
    master_late_s: float
    running: int
    """Containers on all nodes."""


class Simulation:
    """Nodes and applications, built step by step."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        found = (SimulatedNode.numbered(each, workload.resource_tracker) for each in range(workload.nodes))
        self._nodes = {node.host: node for node in found}
        self._applications: list[SimulatedApplication] = []
        self._clients: dict[str, ResourceManager] = {}

    def run(self) -> None:
        """Build everything, then beat until the process is ended."""
        for node in self._nodes.values():
            node.register()
        _tell(f"{len(self._nodes)} nodes registered")
        beats = [node.beat for node in self._nodes.values()]
        nodes = Beating(beats, self._workload.node_beat_s, _NODE_THREADS)
        self._add_elastic()
        self._add_ordinary()
        self._add_waiting()
        beats = [each.beat for each in self._applications]
        masters = Beating(beats, self._workload.master_beat_s, _APPLICATION_THREADS)
        nodes.take_late_s()
        _tell("ready")
        while not (failed := nodes.failed + masters.failed):
            time.sleep(1)
            node_late_s, master_late_s = nodes.take_late_s(), masters.take_late_s()
            line = Beats(
                time.monotonic(),
                len(node_late_s), max(node_late_s, default=0.0),
                len(master_late_s), max(master_late_s, default=0.0),
                self._running(),
            )  # fmt: skip
            print(json.dumps(asdict(line)), flush=True)
        sys.exit(f"simulated beats failed: {failed[0]!r}")

    def _running(self) -> int:
        return sum(len(node.running) for node in self._nodes.values())

    def _client(self, number: int) -> ResourceManager:
        """A connection as the user of an application: only the owner is told its token."""
        user = applications.user_of(number)
        if user not in self._clients:
            self._clients[user] = ResourceManager((self._workload.clients,), user=user)
        return self._clients[user]

    def _submit(self, number: int, context: pb.ApplicationSubmissionContext) -> SimulatedApplication:
        own = UnmanagedApplication.submit(self._client(number), (self._workload.scheduler,), context)
        return SimulatedApplication(own, self._nodes)

    def _add_elastic(self) -> None:
        hosts = iter(self._nodes)
        bases, flexes = [], []
        for number in range(self._workload.elastic):
            client = self._client(number)
            job = self._submit(number, applications.base(client, number))
            job.ask(1, applications.BASE_WORKERS)
            flex = self._submit(number, applications.flex(client, job.own.application_id))
            for grant in range(1, SATELLITES + 1):
                flex.ask(grant, 1, node=next(hosts))
            bases.append(job)
            flexes.append(flex)
        wanted = len(bases) * (applications.BASE_WORKERS + SATELLITES)
        self._fill("bases and satellites", bases + flexes, wanted)
        _tell(f"{len(bases)} elastic jobs run, with {SATELLITES} satellites each")

    def _add_ordinary(self) -> None:
        """Applications that share the GPUs that are left; the last ones have one container less."""
        count = self._workload.ordinary
        free = self._workload.nodes * GPUS - self._running()
        added = []
        for number in range(count):
            found = self._submit(number, applications.ordinary(self._client(number), number))
            found.ask(1, free // count + (number < free % count))
            added.append(found)
        self._fill("ordinary applications", added, free)
        _tell(f"{count} ordinary applications hold {free} GPUs")

    def _fill(self, what: str, added: list[SimulatedApplication], containers: int) -> None:
        """Let all applications beat until those that are new hold so many containers."""
        self._applications += added

        def held() -> int:
            return sum(each.containers for each in added)

        asked_for = f"{what} hold {containers} GPUs"
        applications.beat_until(asked_for, self._applications, lambda: held() == containers, _FULL_S)

    def _add_waiting(self) -> None:
        for number in range(self._workload.waiting):
            context = applications.ordinary(self._client(number), self._workload.ordinary + number)
            found = self._submit(number, context)
            found.ask(1, PENDING_CONTAINERS, gpus=GPUS)
            self._applications.append(found)
        _tell(f"{self._workload.waiting} applications wait")


def _tell(step: str) -> None:
    print(json.dumps({"step": step}), flush=True)


def main() -> None:
    """Entry point. It ends when its input does: whoever started it has ended."""
    workload = Workload(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    Simulation(workload).run()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
