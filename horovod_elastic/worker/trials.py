"""Carries out the leader's TryBatches in the training thread, at mini-batch boundaries."""

from __future__ import annotations

from collections.abc import Sequence

from flexo_protos.v1 import jobs_pb2, tasks_pb2
from horovod_elastic import training
from horovod_elastic.batch_trials import FIRST_ROUNDS, BatchTrials, TurnTimes, batches_to_try


class Trials:
    """The trials of this worker. `want` is for the thread that reads the leader's messages."""

    def __init__(self) -> None:
        self.result: jobs_pb2.TriedBatches | None = None
        """The result, for WorkerStatus.tried; None: there is none yet. Each later round puts a better one
        here."""
        self._wanted: tasks_pb2.TryBatches | None = None
        self._carried_out: tasks_pb2.TryBatches | None = None
        """The last order of which nothing is left to do."""
        self._trials: BatchTrials | None = None
        self._generation = 0
        """The generation of `_trials`."""
        self._size = 0
        """The workers of that generation."""
        self._turns = TurnTimes()
        self._worker_s = 0.0
        """Worker seconds of the trials of earlier generations."""

    def want(self, wanted: tasks_pb2.TryBatches) -> None:
        """Try batches from the first mini-batch of `wanted.generation` on."""
        self._wanted = wanted

    def at_boundary(self, generation: int, size: int, own_s: float, wall_s: float) -> None:
        """Pass a boundary. All of the `size` workers of `generation` call this at the same boundaries.

        `own_s`: seconds since the boundary before, without waiting for others; `wall_s`: with it.
        """
        wanted = self._wanted
        if wanted is None or wanted is self._carried_out or wanted.generation != generation:
            return
        samples = training.take_samples()
        if not samples:  # no step has ended here, or the script has no AggregateBatch
            return
        if self._trials is None or self._generation != generation:
            self._begin(wanted, size)
        elif self._trials.step(own_s, wall_s, samples):
            training.try_out(self._trials.aggregate)
            self._tell(self._trials)
            if self._trials.over:
                self._carried_out = wanted

    def _begin(self, wanted: tasks_pb2.TryBatches, size: int) -> None:
        """Begin the trials of a generation, or go on with those of an earlier one."""
        if self._trials is not None:
            self._worker_s += self._trials.seconds * self._size
        self._worker_s = max(self._worker_s, wanted.worker_s)
        self._trials, self._generation, self._size = None, wanted.generation, size
        weights, largest = training.model()
        batches = _batches(wanted, size, largest)
        if len(batches) < 2 or weights == wanted.known_weights:
            self._carried_out = wanted
            if not wanted.rounds:
                self.result = jobs_pb2.TriedBatches(weights=weights, largest=largest, worker_s=self._worker_s)
            return
        if not wanted.rounds:
            self._turns = TurnTimes()
        self._trials = BatchTrials(batches, self._turns, wanted.rounds)
        training.try_out(self._trials.aggregate)

    def _tell(self, trials: BatchTrials) -> None:
        """Make a result of the rounds so far, if one has just ended and they are enough."""
        told = self.result.rounds if self.result is not None else 0
        if trials.rounds < FIRST_ROUNDS or trials.rounds <= told:
            return
        weights, largest = training.model()
        times = [
            jobs_pb2.BatchTime(samples=each.samples, step_s=each.step_s, steps=each.steps)
            for each in self._turns.times
        ]
        self.result = jobs_pb2.TriedBatches(
            weights=weights,
            largest=largest,
            times=times,
            worker_s=self._worker_s + trials.seconds * self._size,
            rounds=trials.rounds,
        )


def _batches(wanted: tasks_pb2.TryBatches, size: int, largest: int) -> Sequence[int]:
    """The aggregate batches to try with `size` workers: in later rounds, those of a worker that are known."""
    if not wanted.rounds:
        return batches_to_try(wanted.min, wanted.max, size, largest)
    together = (samples * size for samples in wanted.samples)
    return [each for each in together if wanted.min <= each <= wanted.max]
