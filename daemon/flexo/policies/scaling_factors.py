"""Throughput scaling factors: how many times faster than on one GPU a job trains (IBM, equations 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from flexo.model.measured import Speed
from flexo.model.nodes import Node
from flexo.model.training import TrainingJob
from flexo.policies.demand import fewest_workers
from flexo.policies.gpu_optimizer import Choices
from flexo_protos.resources import Amount, total

_KEEPS = 1e-6
"""The bonus of a job's present size, as a part of its worth, so that a smaller gain changes nothing. It is
also the worth of a present size with which, by its speed, the job cannot train."""


@dataclass(frozen=True, slots=True)
class GpuTypeSize:
    """The size of the part of a cluster that has GPUs of one type. The speed-ups of jobs depend on it."""

    gpus: Amount
    """GPUs of all nodes."""
    gpus_of_node: Amount
    """GPUs of the largest node."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> GpuTypeSize:
        """The size that these nodes have together."""
        return cls(total(node.gpus for node in nodes), max((node.gpus for node in nodes), default=0))

    def fewest_nodes(self, workers: int, gpus: Amount) -> int:
        """The fewest nodes that hold `workers` of `gpus` GPUs each."""
        each = self.gpus_of_node // gpus
        return -(-workers // each) if each else 1


def choices(job: TrainingJob, size: GpuTypeSize, batch: int) -> Choices:
    """The numbers of GPUs that `job` can have within its range, and the factor of each, with `batch` as
    aggregate batch.

    `batch` 0: the best that the job accepts, b_opt of equation (2). A running job can always keep its present
    size. A job whose batch is to be chosen, and whose speed is unknown, is tried out first (section III-B):
    it starts with the fewest workers, and keeps its size.
    """
    gpus = job.shape.gpus
    if job.speed is None and job.batch is not None:
        return Choices.of([((job.allocated or fewest_workers(job)) * gpus, 1.0)])
    most = min(job.workers.max, size.gpus // gpus)
    found = _choices(job.speed, gpus, fewest_workers(job), most, size, batch)
    return _with_present(found, job.gpus) if job.shares else found


@lru_cache(maxsize=1 << 14)  # the same jobs are asked about again and again, and a speed never changes
def _choices(
    speed: Speed | None, gpus: Amount, low: int, high: int, size: GpuTypeSize, batch: int
) -> Choices:
    """The choices for `low` to `high` workers of `gpus` GPUs each."""
    single = _single_gpu_rate(speed, gpus, size)
    return Choices.of(
        (workers * gpus, _rate(speed, gpus, workers, size, batch) / single)
        for workers in range(low, high + 1)
    )


def _rate(speed: Speed | None, gpus: Amount, workers: int, size: GpuTypeSize, batch: int) -> float:
    return float(workers) if speed is None else speed.rate(workers, size.fewest_nodes(workers, gpus), batch)


@lru_cache(maxsize=1 << 14)
def _single_gpu_rate(speed: Speed | None, gpus: Amount, size: GpuTypeSize) -> float:
    """T_j(b_max, 1): the rate on one GPU, or per GPU of a worker, with the largest batch that fits there.

    If no batch that the job accepts fits one worker, b_max is one worker's part of the best batch of the
    fewest workers that can train it. 1: no number of workers can train it.
    """
    if speed is None:
        return 1 / float(gpus)
    for workers in range(1, size.gpus // gpus + 1):
        rate = _rate(speed, gpus, workers, size, 0)
        if rate <= 0:
            continue
        part = -(-speed.best_batch(workers, size.fewest_nodes(workers, gpus)) // workers)
        alone = speed.rate(1, 1, part) if workers > 1 and part else 0.0
        return (alone or rate / workers) / float(gpus)
    return 1.0


def _with_present(choices: Choices, gpus: Amount) -> Choices:
    """The choices with a bonus for the present size. If that is less than all choices, it becomes a
    choice."""
    if gpus in choices.gpus:
        at = choices.gpus.index(gpus)
        worth = (*choices.worth[:at], choices.worth[at] * (1 + _KEEPS), *choices.worth[at + 1 :])
        return Choices(choices.gpus, worth)
    if choices.fewest is None or gpus < choices.fewest:
        return Choices.of([(gpus, _KEEPS), *zip(choices.gpus, choices.worth, strict=True)])
    return choices
