"""The Aggregator of this node (`--core=service`): two processes beside the workers, replaced as they die.

One of them serves. The other one waits for its death, because Python takes longer to start than a mini-batch
may wait. Like the workers they are the supervisor's children, so they outlive the agent. In a satellite
without workers, they sum for the job's other nodes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flexo_protos.v1 import jobs_pb2
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic.agent.supervisor_link import SupervisorLink
from horovod_elastic.aggregation import control
from horovod_elastic.aggregation.control import AssignedAggregator
from horovod_elastic.aggregation.place import read as read_place
from horovod_elastic.core import choice
from horovod_elastic.trace import say

PROCESS_IDS = ("aggregator", "aggregator-2")
"""What the supervisor calls the processes. No worker's id is one of these words."""
_MODULES = Path(__file__).resolve().parents[2]
STARTS_AGAIN = 100
"""How often one agent starts processes again. A job without any uses its own all-reduce."""


class LocalAggregator:
    """See the module. `host`: this node's address for other nodes. The agent's main thread calls it."""

    def __init__(self, supervisor: SupervisorLink, host: str, *, workers: bool = True) -> None:
        """`workers`: whether workers are on this node."""
        self._supervisor = supervisor
        self._host = host
        self._workers = workers
        self._started_again = 0
        self._takes_assignments = workers and choice.wants_assignment()
        self.assigned = _known(supervisor.folder) if self._takes_assignments else jobs_pb2.Aggregators()
        """The last assignment, for the next leader. An earlier agent may have heard of it."""

    def start(self) -> None:
        """Start the processes that no earlier agent has started."""
        for process_id in PROCESS_IDS:
            if not self._supervisor.keeps(process_id):
                self._start(process_id)

    def _start(self, process_id: str) -> None:
        folders = (str(_MODULES), os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        command = [sys.executable, "-m", "horovod_elastic.aggregation"]
        command += ["--folder", str(self._supervisor.folder), "--host", self._host]
        command += [] if self._workers else ["--no-workers"]
        self._supervisor.start(pb.StartWorker(worker_id=process_id), command, environment, deaf=True)

    def assign(self, told: jobs_pb2.Aggregators) -> None:
        """Have the job's sums made by these Aggregators; none: by the job's own."""
        if not self._takes_assignments or told == self.assigned:
            return
        assigned = [
            AssignedAggregator(each.host, each.port, each.token, each.share) for each in told.aggregators
        ]
        try:
            control.assign(self._supervisor.folder, told.version, assigned, in_satellites=told.in_satellites)
        except OSError as error:
            say(f"this node's Aggregator keeps its assignment, because its folder cannot be written: {error}")
            return
        self.assigned = told

    def usage(self) -> pb.AggregatorUsage | None:
        """What the Aggregator does, for the leader; None: nothing yet, or nobody asks."""
        used = control.usage(self._supervisor.folder) if self._takes_assignments else None
        if used is None or min(used.bytes, used.rounds, used.version, used.cpu_s) < 0:
            return None
        return pb.AggregatorUsage(
            bytes=used.bytes, rounds=used.rounds, version=used.version, cpu_s=used.cpu_s
        )

    def place(self) -> pb.AggregatorPlace | None:
        """Where it serves other nodes, for the leader; None: nowhere yet, or it serves workers here."""
        found = None if self._workers else read_place(self._supervisor.folder)
        if found is None:
            return None
        return pb.AggregatorPlace(
            host=found.host, port=found.port, token=found.token, starts_again=self._started_again
        )

    def ended(self, process_id: str, exit_code: int) -> None:
        """Start one of the processes again. If it served, the other one does now."""
        self._supervisor.forget(process_id)
        if self._started_again == STARTS_AGAIN:
            say(f"this node's Aggregator has ended {STARTS_AGAIN + 1} times and is not started again")
            return
        self._started_again += 1
        say(f"this node's Aggregator has ended with {exit_code} and is started again")
        self._start(process_id)


def _known(folder: Path) -> jobs_pb2.Aggregators:
    """The assignment in the folder."""
    known = control.assignment(folder)
    assigned = [
        jobs_pb2.AssignedAggregator(host=each.host, port=each.port, token=each.token, share=each.share)
        for each in known.assigned
    ]
    return jobs_pb2.Aggregators(
        version=known.version, aggregators=assigned, in_satellites=known.in_satellites
    )
