"""What IBM compares with: the same autoscaler and optimizer, but a job's batch is fixed (section IV-B).

GPUs stay elastic. Jobs that accept one batch only are treated as by `throughput`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from flexo.model.training import TrainingJob
from flexo.policies.autoscaler import Autoscaler


@dataclass(frozen=True, slots=True)
class MaxBatch(Autoscaler):
    """Max-BS: the largest batch that the job accepts."""

    name: ClassVar[str] = "max-batch"

    def batch_of(self, job: TrainingJob) -> int:
        """Its largest."""
        return job.batch.max if job.batch is not None else 0


@dataclass(frozen=True, slots=True)
class MinBatch(Autoscaler):
    """Min-BS: the smallest batch that the job accepts."""

    name: ClassVar[str] = "min-batch"

    def batch_of(self, job: TrainingJob) -> int:
        """Its smallest."""
        return job.batch.min if job.batch is not None else 0


@dataclass(frozen=True, slots=True)
class RandomBatch(Autoscaler):
    """Random-BS: drawn once for each job, uniformly from all it accepts; the baseline of their tables."""

    name: ClassVar[str] = "random-batch"

    seed: int = 0
    """With the same seed the job of a number always draws the same."""

    def batch_of(self, job: TrainingJob) -> int:
        """What it drew."""
        if job.batch is None:
            return 0
        digest = blake2b(f"{self.seed} {job.key.job_id}".encode(), digest_size=8).digest()
        return job.batch.min + int.from_bytes(digest) % (job.batch.max - job.batch.min + 1)
