"""A job that trains in the background while the benchmark watches its steps and moves its partitions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

from flexo_bench.ranks import Rank, each
from flexo_bench.service.resident.job import Mover, Plan, leave, train

BLOCK = 3
"""Steps of one command to the workers."""
_POLL_S = 0.05


@dataclass(slots=True)
class Trainer:
    """Trains until it is stopped. `compute_s`: the sleep in a step. Mutable: `ends` grows."""

    plan: Plan
    workers: Sequence[Rank]
    compute_s: float
    mover: Mover
    ends: list[float] = field(default_factory=list)
    """When the steps of its first worker ended, in seconds since the epoch."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _running: Future[None] = field(default_factory=Future)

    @property
    def name(self) -> str:
        """The job, as pMaster calls it."""
        return str(self.plan.number)

    @property
    def gaps_s(self) -> list[float]:
        """The seconds between its steps so far."""
        return [after - before for before, after in pairwise(self.ends)]

    def train_on(self, steps: int) -> None:
        """Wait for so many steps more. Raises what its workers raise."""
        wanted = len(self.ends) + steps
        while len(self.ends) < wanted:
            if self._running.done():
                self._running.result()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Have it leave its servers after the steps that it has begun, and wait for that."""
        self._stopped.set()
        self._running.result()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """It trains in the meantime."""
        with ThreadPoolExecutor(1) as thread:
            self._running = thread.submit(self._train)
            try:
                yield
            finally:
                self._stopped.set()
        self._running.result()

    def _train(self) -> None:
        while not self._stopped.is_set():
            ends, *_ = each(self.workers, train, BLOCK, self.compute_s, self.plan.number)
            self.ends += ends
        each(self.workers, leave, self.plan.number)
