"""Slurm's view of the inference servers at each poll: their holders and which are lent. All is pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flexo.clusters.slurm.hostlist import expand
from flexo_demos.elastic.queue import QueuedJob

IDLE, INFERENCE, SATELLITES, BASE = "idle", "inference", "satellites", "base"
"""The holder of a server. `BASE`: a base, also beside satellites. `INFERENCE`: inference beside any other."""


@dataclass(frozen=True, slots=True)
class Look:
    """One poll of the cluster. `at` is in seconds since the epoch."""

    at: float
    lent: frozenset[str]
    """Servers in the borrowed partition."""
    needed: int
    """Traffic, in servers."""
    jobs: tuple[QueuedJob, ...]
    inference: frozenset[int]
    """Ids of the inference jobs in `jobs`."""
    restarts: int
    """Number of times that the fungible job has been requeued."""

    def job(self, job_id: int) -> QueuedJob | None:
        """The job `job_id`; None if Slurm does not know it."""
        return next((job for job in self.jobs if job.job_id == job_id), None)

    @property
    def waiting(self) -> int:
        """Number of inference jobs that have no server yet."""
        return sum(job.job_id in self.inference and not job.gpus and not job.over for job in self.jobs)

    def on(self, server: str) -> str:
        """The holder of `server`'s GPUs: IDLE, INFERENCE, SATELLITES or BASE."""
        here = [job for job in self.jobs if any(node == server for node, _ in job.gpus)]
        if any(job.job_id in self.inference for job in here):
            return INFERENCE
        if any(not job.satellite for job in here):
            return BASE
        return SATELLITES if here else IDLE

    def trains_on(self, server: str) -> bool:
        """True if a job other than inference holds GPUs of `server`."""
        return any(
            job.job_id not in self.inference and any(node == server for node, _ in job.gpus)
            for job in self.jobs
        )

    def gpus_lent_in_use(self, servers: Sequence[str]) -> int:
        """Number of GPUs of `servers` that training holds."""
        return sum(
            count
            for job in self.jobs
            if job.job_id not in self.inference
            for node, count in job.gpus
            if node in servers
        )


def nodes_of_partition(text: str) -> frozenset[str]:
    """Nodes in what `scontrol --oneliner show partition NAME` prints."""
    match = re.search(r"(?:^|\s)Nodes=(\S*)", text)
    return frozenset(expand(match[1])) if match else frozenset()


def restarts_of(text: str, job_id: int) -> int:
    """Restarts of a job in what `scontrol show job` prints; 0 if Slurm does not know the job."""
    match = re.search(rf"JobId={job_id}\s.*?\sRestarts=(\d+)", text, re.DOTALL)
    return int(match[1]) if match else 0
