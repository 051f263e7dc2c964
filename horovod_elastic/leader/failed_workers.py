"""The failures of workers that are replaced, told in one line: several fail within a moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flexo_protos.v1 import jobs_pb2
from horovod_elastic.leader.membership.commands import WorkerFailed
from horovod_elastic.trace import count, how_it_ended

COLLECTED_S = 3.0
"""Time from the first failure until it is told, with those that have come meanwhile."""
_AS_IT_IS = "New workers read the script as it is now"


@dataclass(frozen=True, slots=True)
class FailedWorkers:
    """Workers of one node that failed alike."""

    node: str
    workers: int
    exit_code: int
    trained: bool
    again: bool
    """Whether they were started again."""

    def sentence(self, training: int) -> str:
        """The line for the job's output. `training`: the number of workers that train on."""
        how = how_it_ended(self.exit_code)
        kind, when = ("worker", "") if self.trained else ("new worker", " before training")
        if self.again:
            were = "was" if self.workers == 1 else "were"
            return f"{count(self.workers, kind)} on {self.node} failed{when} ({how}) and {were} started again"
        on = f"; the job trains on with {count(training, 'worker')}" if training else ""
        return f"{kind}s on {self.node} fail{when} ({how}){on}. {_AS_IT_IS}"

    def told(self) -> jobs_pb2.WorkersFailed:
        """The message for flexod."""
        return jobs_pb2.WorkersFailed(
            node=self.node, workers=self.workers, how=how_it_ended(self.exit_code), trained=self.trained
        )


class FailureCollector:
    """See the module."""

    def __init__(self) -> None:
        self._failed: Counter[WorkerFailed] = Counter()
        self._due = 0.0

    def add(self, failed: WorkerFailed, now: float) -> None:
        """Note the failure of one worker."""
        if not self._failed:
            self._due = now + COLLECTED_S
        self._failed[failed] += 1

    def take(self, now: float) -> list[FailedWorkers]:
        """The failures to tell now."""
        if not self._failed or now < self._due:
            return []
        taken, self._failed = self._failed, Counter()
        return [
            FailedWorkers(each.node, number, each.exit_code, each.trained, each.again)
            for each, number in taken.items()
        ]
