"""IBM's baselines: the same autoscaler and optimizer, but a job's batch is fixed (section IV-B).

GPUs stay elastic. Jobs that accept only one batch are treated as by `throughput`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from flexo.model.training import TrainingJob
from flexo.policies.autoscaler import Autoscaler


@dataclass(frozen=True, slots=True)
class MaxBatch(Autoscaler):
    """Max-BS: each job trains with the largest batch that it accepts."""

    name: ClassVar[str] = "max-batch"

    def batch_of(self, job: TrainingJob) -> int:
        """The job's largest batch."""
        return job.batch.max if job.batch is not None else 0


@dataclass(frozen=True, slots=True)
class MinBatch(Autoscaler):
    """Min-BS: each job trains with the smallest batch that it accepts."""

    name: ClassVar[str] = "min-batch"

    def batch_of(self, job: TrainingJob) -> int:
        """The job's smallest batch."""
        return job.batch.min if job.batch is not None else 0


@dataclass(frozen=True, slots=True)
class RandomBatch(Autoscaler):
    """Random-BS: each job's batch is drawn once, uniformly from all that it accepts. The baseline of the
    paper's tables."""

    name: ClassVar[str] = "random-batch"

    seed: int = 0
    """The seed of the draws: with the same seed, the job of a number always draws the same batch."""

    def batch_of(self, job: TrainingJob) -> int:
        """The batch that the job drew."""
        if job.batch is None:
            return 0
        digest = blake2b(f"{self.seed} {job.key.job_id}".encode(), digest_size=8).digest()
        return job.batch.min + int.from_bytes(digest) % (job.batch.max - job.batch.min + 1)
