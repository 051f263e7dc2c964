"""Asks a policy in which order pending jobs of a Slurm cluster are to start.

It is shown every pending job, and a cluster on which nothing is idle and nothing can be taken: so it starts
nobody, and what it says is the order of all.
"""

from __future__ import annotations

from dataclasses import replace

from flexo.model import JobKey, Snapshot
from flexo.policies.base import Policy


def order_of(policy: Policy, snapshot: Snapshot) -> tuple[JobKey, ...]:
    """The pending jobs of `snapshot.training`, the first to start first; () where the policy has no order."""
    waiting = tuple(job for job in snapshot.training if not job.shares)
    if not waiting:
        return ()
    full = tuple(replace(node, gpus_allocated=node.gpus) for node in snapshot.nodes)
    return policy.plan(replace(snapshot, nodes=full, training=waiting, decided_at=0.0)).order
