"""The set-up of a workload's simulation: everything besides jobs and a policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.training import Quota
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo_simulation.costs import Costs
from flexo_simulation.estimates import Estimates
from flexo_simulation.inference import Inference
from flexo_simulation.on_slurm.times import SlurmTimes
from flexo_simulation.seats import GpuSharing


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cluster and the rules of one simulation."""

    nodes: tuple[NodeGroup, ...]
    costs: Costs = field(default_factory=Costs)
    interval_s: float | None = None
    """The policy decides at multiples of these seconds only; None: at every event."""
    estimates: Estimates = field(default_factory=Estimates)
    """The source of the running times that policies use."""
    quotas: tuple[Quota, ...] = ()
    """GPUs that tenants are guaranteed."""
    limits_end_jobs: bool = False
    """Whether a job that has run longer than its time limit is ended."""
    gpu_speeds: GpuSpeeds = field(default_factory=GpuSpeeds)
    """The real speeds of GPUs, by type."""
    checkpoints: bool = True
    """Whether a preempted job goes on where it was; otherwise it begins anew."""
    sharing: GpuSharing = field(default_factory=GpuSharing)
    """What two jobs on one GPU do to each other, where the policy gives GPUs to two jobs."""
    inference: Inference | None = None
    """The inference cluster beside the training cluster, which may lend servers."""
    on_slurm: SlurmTimes | None = None
    """The delays of a simulated Slurm, which starts bases and leaves them where they are, while jobs grow by
    satellites. Then `costs`, `interval_s` and `estimates` do not matter. None: the policy starts and moves
    everything."""
