"""The Aggregator of this node (`--core=service`): a process beside the workers, started again when it dies.

Like the workers it is the supervisor's child, so it outlives the agent.
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
from horovod_elastic.core import choice
from horovod_elastic.trace import say

WORKER_ID = "aggregator"
"""What the supervisor calls the process. No worker's id is this word."""
_MODULES = Path(__file__).resolve().parents[2]
STARTS_AGAIN = 100
"""How often one agent starts the process again. A job without it uses its own all-reduce."""


class LocalAggregator:
    """See the module. `host`: this node's address for other nodes. The agent's main thread calls it."""

    def __init__(self, supervisor: SupervisorLink, host: str) -> None:
        self._supervisor = supervisor
        self._host = host
        self._starts = 0
        self._wants_pool = choice.wants_pool()
        self.assigned = _known(supervisor.folder) if self._wants_pool else jobs_pb2.Aggregators()
        """The last assignment of pool Aggregators, for the next leader. An earlier agent may have heard of
        it."""

    def start(self) -> None:
        """Start the process."""
        self._starts += 1
        folders = (str(_MODULES), os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        command = [sys.executable, "-m", "horovod_elastic.aggregation"]
        command += ["--folder", str(self._supervisor.folder), "--host", self._host]
        order = pb.StartWorker(worker_id=WORKER_ID)
        self._supervisor.start(order, command, environment, deaf=True)

    def assign(self, told: jobs_pb2.Aggregators) -> None:
        """Have the next generation use these Aggregators; none: the job's own."""
        if not self._wants_pool or told == self.assigned:
            return
        assigned = [
            AssignedAggregator(each.host, each.port, each.token, each.share) for each in told.aggregators
        ]
        try:
            control.assign(self._supervisor.folder, told.version, assigned)
        except OSError as error:
            say(f"this node's Aggregator keeps its assignment, because its folder cannot be written: {error}")
            return
        self.assigned = told

    def usage(self) -> pb.AggregatorUsage | None:
        """What the Aggregator does, for the leader; None: nothing yet, or nobody asks."""
        used = control.usage(self._supervisor.folder) if self._wants_pool else None
        if used is None or min(used.bytes, used.rounds, used.version) < 0:
            return None
        return pb.AggregatorUsage(bytes=used.bytes, rounds=used.rounds, version=used.version)

    def ended(self, exit_code: int) -> None:
        """Start the process again."""
        self._supervisor.forget(WORKER_ID)
        if self._starts > STARTS_AGAIN:
            say(f"this node's Aggregator has ended {self._starts} times and is not started again")
            return
        say(f"this node's Aggregator has ended with {exit_code} and is started again")
        self.start()


def _known(folder: Path) -> jobs_pb2.Aggregators:
    """The assignment in the folder."""
    known = control.assignment(folder)
    assigned = [
        jobs_pb2.AssignedAggregator(host=each.host, port=each.port, token=each.token, share=each.share)
        for each in known.assigned
    ]
    return jobs_pb2.Aggregators(version=known.version, aggregators=assigned)
