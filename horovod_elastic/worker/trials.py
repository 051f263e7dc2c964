"""Carries out the leader's TryBatches in the training thread, at mini-batch boundaries."""

from __future__ import annotations

from flexo_protos.v1 import jobs_pb2, tasks_pb2
from horovod_elastic import training
from horovod_elastic.batch_trials import BatchTrials, batches_to_try


class Trials:
    """The trials of this worker. `want` is for the thread that reads the leader's messages."""

    def __init__(self) -> None:
        self.result: jobs_pb2.TriedBatches | None = None
        """The result, for WorkerStatus.tried; None: there is none yet. It never changes once it is made."""
        self._wanted: tasks_pb2.TryBatches | None = None
        self._trials: BatchTrials | None = None
        self._generation = 0
        """The generation of `_trials`."""
        self._worker_s = 0.0
        """Worker seconds of trials that a new generation has broken off."""

    def want(self, wanted: tasks_pb2.TryBatches) -> None:
        """Try batches from the first mini-batch of `wanted.generation` on."""
        self._wanted = wanted

    def at_boundary(self, generation: int, size: int, own_s: float, wall_s: float) -> None:
        """Pass a boundary. All of the `size` workers of `generation` call this at the same boundaries.

        `own_s`: seconds since the boundary before, without waiting for others; `wall_s`: with it.
        """
        wanted = self._wanted
        if wanted is None or wanted.generation != generation:
            return
        samples = training.take_samples()
        if not samples:  # no step has ended here, or the script has no AggregateBatch
            return
        if self._trials is None or self._generation != generation:
            self._begin(wanted, size)
        elif self._trials.step(own_s, wall_s, samples):
            training.try_out(self._trials.aggregate)
            if not self._trials.aggregate:
                self._end(size)

    def _begin(self, wanted: tasks_pb2.TryBatches, size: int) -> None:
        if self._trials is not None:
            self._worker_s += self._trials.seconds * size
        weights, largest = training.model()
        batches = batches_to_try(wanted.min, wanted.max, size, largest)
        if len(batches) < 2 or weights == wanted.known_weights:
            self._wanted, self._trials = None, None
            self.result = jobs_pb2.TriedBatches(weights=weights, largest=largest, worker_s=self._worker_s)
            return
        self._trials, self._generation = BatchTrials(batches), wanted.generation
        training.try_out(self._trials.aggregate)

    def _end(self, size: int) -> None:
        assert self._trials is not None
        weights, largest = training.model()
        times = [
            jobs_pb2.BatchTime(samples=each.samples, step_s=each.step_s, steps=each.steps)
            for each in self._trials.times
        ]
        worker_s = self._worker_s + self._trials.seconds * size
        self._wanted, self._trials = None, None
        self.result = jobs_pb2.TriedBatches(weights=weights, largest=largest, times=times, worker_s=worker_s)
