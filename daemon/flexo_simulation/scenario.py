"""What a workload is run on and how: all that a simulation needs besides jobs and a policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.training import Quota
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo_simulation.costs import Costs
from flexo_simulation.estimates import Estimates
from flexo_simulation.inference import Inference
from flexo_simulation.on_slurm.times import SlurmTimes


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cluster and the rules of one simulation."""

    nodes: tuple[NodeGroup, ...]
    costs: Costs = field(default_factory=Costs)
    interval_s: float | None = None
    """The policy decides at multiples of this only; None: whenever something happens."""
    estimates: Estimates = field(default_factory=Estimates)
    """Where the running times that policies go by come from."""
    quotas: tuple[Quota, ...] = ()
    """GPUs that tenants are guaranteed."""
    limits_end_jobs: bool = False
    """A job that has run longer than its time limit is ended."""
    gpu_speeds: GpuSpeeds = field(default_factory=GpuSpeeds)
    """What GPUs really do by their type."""
    checkpoints: bool = True
    """A preempted job goes on where it was; else it begins anew."""
    inference: Inference | None = None
    """The inference cluster beside it, which may lend servers."""
    on_slurm: SlurmTimes | None = None
    """Jobs run as on Slurm, which starts bases and leaves them where they are, and grow by satellites; then
    `costs`, `interval_s` and `estimates` do not matter. None: the policy starts and moves everything."""
