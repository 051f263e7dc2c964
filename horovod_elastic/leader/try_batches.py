"""The trials of several batches that flexod asks a job for (batch_trials.py). Pure.

The leader orders the trials for the workers of one generation. If a resize breaks the trials off, it orders
them again for a later generation.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from flexo_protos.v1 import jobs_pb2, tasks_pb2, workers_pb2

MOST_ATTEMPTS = 3
"""Generations in which the trials are begun at most."""


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
        """The workers' result, for Report.tried; None: there is none yet."""

    def welcomed(self, welcome: jobs_pb2.Welcome) -> None:
        """Take what flexod says of trials."""
        self._wanted = welcome.try_batches
        self._known_weights = welcome.known_weights

    def due(self, generation: int) -> bool:
        """Whether `generation`, which trains, has to be followed by one that makes the trials."""
        return self._heard and self._outstanding and self._told_generation < generation

    def task(self, generation: int) -> tasks_pb2.Task | None:
        """The task of all workers that enter `generation`; None: no trials."""
        if not self._outstanding or self._range is None:
            return None
        self._attempts += 1
        self._told_generation = generation
        low, high = self._range
        wanted = tasks_pb2.TryBatches(
            min=low, max=high, generation=generation, known_weights=self._known_weights
        )
        return tasks_pb2.Task(try_batches=wanted)

    def stands(self, status: workers_pb2.WorkerStatus) -> None:
        """Take a worker's status. The first result counts."""
        self._heard = True
        if self.result is None and status.HasField("tried"):
            self.result = status.tried

    @property
    def _outstanding(self) -> bool:
        wanted = self._wanted and self._range is not None and self.result is None
        return wanted and self._attempts < MOST_ATTEMPTS


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
