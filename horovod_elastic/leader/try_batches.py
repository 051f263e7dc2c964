"""The trials of several batches that flexod asks a job for (batch_trials.py). Pure.

The leader orders the trials for the workers of one generation. If a resize breaks them off before they have a
result, it orders them again for a later generation. Otherwise the next generation makes the rounds that are
left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from flexo_protos.v1 import jobs_pb2, tasks_pb2, workers_pb2
from horovod_elastic.batch_trials import ROUNDS

MOST_ATTEMPTS = 3
"""Generations at most in which trials are begun that have no result yet."""


class TryBatches:
    """The trials of one job, as its leader knows them."""

    def __init__(self, batch: str) -> None:
        """`batch`: range of the job's aggregate batch, MIN-MAX (--elastic-batch); "": the script's own."""
        match = re.fullmatch(r"(\d+)-(\d+)", batch)
        self._range = (int(match[1]), int(match[2])) if match else None
        self._wanted = False
        self._known_weights = 0
        self._attempts = 0
        self._told_generation = 0
        self._heard = False
        """Whether a worker has reported: a new leader does not know yet what was tried."""
        self.result: jobs_pb2.TriedBatches | None = None
        """The workers' best result, for Report.tried; None: there is none yet."""

    def welcomed(self, welcome: jobs_pb2.Welcome) -> None:
        """Take what flexod says of trials."""
        self._wanted = welcome.try_batches
        self._known_weights = welcome.known_weights

    def due(self, generation: int) -> bool:
        """Whether `generation`, which trains, has to be followed by one that makes the trials."""
        return self._heard and self._outstanding and self._told_generation < generation

    def task(self, generation: int) -> tasks_pb2.Task | None:
        """The task of all workers that enter `generation`; None: no trials."""
        if self._range is None:
            return None
        low, high = self._range
        wanted = tasks_pb2.TryBatches(min=low, max=high, generation=generation)
        if self._outstanding:
            self._attempts += 1
            self._told_generation = generation
            wanted.known_weights = self._known_weights
        elif self.result is not None and 0 < self.result.rounds < ROUNDS:
            wanted.rounds, wanted.worker_s = self.result.rounds, self.result.worker_s
            wanted.samples.extend(each.samples for each in self.result.times)
        else:
            return None
        return tasks_pb2.Task(try_batches=wanted)

    def stands(self, status: workers_pb2.WorkerStatus) -> None:
        """Take a worker's status. The times over the most steps count, and of equal ones the first."""
        self._heard = True
        if not status.HasField("tried"):
            return
        said, before = status.tried, self.result
        if before is None:
            self.result = said
            return
        best = said if _steps(said) > _steps(before) else before
        self.result = jobs_pb2.TriedBatches(
            weights=best.weights,
            largest=best.largest,
            times=best.times,
            worker_s=max(before.worker_s, said.worker_s),
            rounds=max(before.rounds, said.rounds),
        )

    @property
    def _outstanding(self) -> bool:
        wanted = self._wanted and self._range is not None and self.result is None
        return wanted and self._attempts < MOST_ATTEMPTS


def _steps(tried: jobs_pb2.TriedBatches) -> int:
    return sum(each.steps for each in tried.times)


def script_digest(command: Sequence[str]) -> str:
    """A digest of the job's command and the Python file in it: equal for jobs that train alike.

    "": the command has no Python file that can be read.
    """
    for argument in command:
        if argument.endswith(".py"):
            try:
                content = Path(argument).read_bytes()
            except OSError:
                continue
            words = "\0".join(command).encode(errors="surrogateescape")
            return hashlib.sha256(words + b"\0\0" + content).hexdigest()
    return ""
