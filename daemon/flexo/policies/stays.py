"""How long idle GPUs beside bases are likely to stay with who is given them (Amoeba, section 3.2).

Nodes that the cluster has planned for a pending job are not idle, and what a pending job could start on
is kept for it: so what is left to know is how long satellites lately stayed, and when a job is planned to
start that has no choice of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flexo.model.plans import Snapshot
from flexo.model.queue import QueuedJob
from flexo.policies.pending import waiting_jobs


def stays(snapshot: Snapshot, nodes: Iterable[str]) -> Mapping[str, float]:
    """Seconds, by node; infinite where nothing is known."""
    wanted_at: dict[str, float] = {}
    for job in waiting_jobs(snapshot):
        if job.started_at is not None and job.started_at > snapshot.at:
            for name in _needed(job, snapshot):
                wanted_at[name] = min(job.started_at, wanted_at.get(name, job.started_at))
    return {
        name: min(snapshot.stay_s, wanted_at[name] - snapshot.at) if name in wanted_at else snapshot.stay_s
        for name in nodes
    }


def _needed(job: QueuedJob, snapshot: Snapshot) -> frozenset[str]:
    """Nodes that it cannot do without."""
    if job.required_nodes:
        return job.required_nodes
    allowed = frozenset[str]().union(
        *(partition.nodes for partition in snapshot.partitions if partition.name in job.partitions)
    )
    allowed -= job.excluded_nodes
    return allowed if len(allowed) <= job.num_nodes else frozenset()
