"""IBM's policy: runs as many jobs as fit, with the GPUs and batches with which all together train fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flexo.model.training import TrainingJob
from flexo.policies.autoscaler import Autoscaler


@dataclass(frozen=True, slots=True)
class Throughput(Autoscaler):
    """Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", section III.

    The sum of all jobs' throughput scaling factors is maximised over GPUs and batch sizes. Speeds come from
    the job scalability analyzer (`scalability.jsa`), or from whatever else is known of a job.
    """

    name: ClassVar[str] = "throughput"

    def batch_of(self, job: TrainingJob) -> int:
        """0: the best batch at every size (batch-size elasticity)."""
        return 0
