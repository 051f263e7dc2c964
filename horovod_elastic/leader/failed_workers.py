"""The failures of workers that are replaced, told in one line: several fail within a moment."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from flexo_protos.v1 import jobs_pb2
from horovod_elastic.leader.membership.commands import WorkerFailed
from horovod_elastic.trace import count, how_it_ended

LATELY_S = 600.0
"""Failures of so long ago still count as late ones."""
MOST_COUNTED = 1000
OFTEN = 3
"""From so many late failures on, their number is told."""
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
    lately: int
    """Workers of the job that failed within LATELY_S, these included."""

    def sentence(self, training: int) -> str:
        """The line for the job's output. `training`: the number of workers that train on."""
        how = how_it_ended(self.exit_code)
        kind, when = ("worker", "") if self.trained else ("new worker", " before training")
        if self.again:
            were = "was" if self.workers == 1 else "were"
            often = f". That makes {self.lately} failures in 10 minutes" if self.lately >= OFTEN else ""
            which = f"{count(self.workers, kind)} on {self.node}"
            return f"{which} failed{when} ({how}) and {were} started again{often}"
        on = f"; the job trains on with {count(training, 'worker')}" if training else ""
        return f"{kind}s on {self.node} fail{when} ({how}){on}. {_AS_IT_IS}"

    def told(self) -> jobs_pb2.WorkersFailed:
        """The message for flexod."""
        return jobs_pb2.WorkersFailed(
            node=self.node,
            workers=self.workers,
            how=how_it_ended(self.exit_code),
            trained=self.trained,
            lately=self.lately,
        )


class FailureCollector:
    """See the module."""

    def __init__(self) -> None:
        self._failed: Counter[WorkerFailed] = Counter()
        self._due = 0.0
        self._at = deque[float](maxlen=MOST_COUNTED)
        """The times of late failures, the oldest first."""

    def add(self, failed: WorkerFailed, now: float) -> None:
        """Note the failure of one worker."""
        if not self._failed:
            self._due = now + COLLECTED_S
        self._failed[failed] += 1
        self._at.append(now)

    def take(self, now: float) -> list[FailedWorkers]:
        """The failures to tell now."""
        if not self._failed or now < self._due:
            return []
        taken, self._failed = self._failed, Counter()
        while self._at and self._at[0] < now - LATELY_S:
            self._at.popleft()
        return [
            FailedWorkers(each.node, number, each.exit_code, each.trained, each.again, len(self._at))
            for each, number in taken.items()
        ]
