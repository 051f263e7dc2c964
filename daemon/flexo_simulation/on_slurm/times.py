"""Delays on a Slurm cluster with flexo, which a simulation of one charges.

All are in seconds, and have to be measured: `make bench-fidelity` measures them on a lab.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from flexo_simulation import costs


@dataclass(frozen=True, slots=True)
class StartTime:
    """The start time of workers that start together. It grows with their number if they share cores."""

    first_s: float = 0.0
    """Seconds for one worker."""
    more_s: float = 0.0
    """Seconds for each further worker."""

    def of(self, workers: int) -> float:
        """Seconds for this number of workers."""
        return self.first_s + self.more_s * max(0, workers - 1)


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """Delays of Slurm, of flexod and of elastic jobs. Jobs that are not elastic start and end at once."""

    submit_s: float = 0.0
    """Time from a job's submission until Slurm has started it, if there is room."""
    free_s: float = 0.0
    """Time from a job's end until Slurm has started one that waits for its GPUs."""
    backfill_s: float = 30.0
    """Time between two passes of Slurm over everything that waits (bf_interval)."""
    boot: StartTime = field(default_factory=StartTime)
    """Time from the start of a base until its script trains."""
    end_s: float = 0.0
    """Time from the last mini-batch of an elastic job until the job has ended."""
    look_s: float = 2.0
    """Time between two polls of the cluster by flexod ([controller] min_interval_s)."""
    satellite_s: float = 0.0
    """Time from a grant until its satellite runs, if there is room."""
    warm: StartTime = field(default_factory=StartTime)
    """Time from a satellite's start until its workers train with the others, who train on meanwhile."""
    leave_s: float = 0.0
    """Time from the order that a satellite is to leave until a job that waits for its GPUs has started."""
    join_s: float = 0.0
    """Time for which all workers stand still when others join them."""
    part_s: float = 0.0
    """Time for which all workers stand still when some of them leave."""
    min_resize_interval_s: float = 60.0
    """Least time between two resizes of one job, as in flexod's [controller]."""
    order: Literal["cluster", "policy"] = "cluster"
    """Who orders pending jobs, as in flexod's [controller]."""
    evict_s: float = 0.0
    """Time from flexod's preemption of a base until its GPUs are free."""
    grace_s: float = 0.0
    """Time from Slurm's preemption of a base until its GPUs are free (GraceTime)."""
    again_s: float = 0.0
    """Time from then until Slurm may start that base again (AuthInfo=cred_expire)."""

    def but(
        self,
        boot_s: float | None = None,
        pause_s: float | None = None,
        warm_s: float | None = None,
        look_s: float | None = None,
    ) -> SlurmTimes:
        """These times, with the given ones replaced, whatever the number of workers."""
        return replace(
            self,
            boot=self.boot if boot_s is None else StartTime(boot_s),
            join_s=self.join_s if pause_s is None else pause_s,
            part_s=self.part_s if pause_s is None else pause_s,
            warm=self.warm if warm_s is None else StartTime(warm_s),
            look_s=self.look_s if look_s is None else look_s,
        )


MEASURED: Final = SlurmTimes(
    submit_s=1.1,
    free_s=2.0,
    boot=StartTime(costs.MEASURED.start_s),
    end_s=0.8,
    satellite_s=1.1,
    warm=StartTime(2.4),
    leave_s=1.3,
    join_s=costs.MEASURED.resize_s,
    part_s=costs.MEASURED.resize_s,
)
"""Times on a lab whose nodes are one machine: booting, warming up and standing still by `make bench-runtime`
(docs/evidence/resize-cost.md, 11.8 million parameters), the rest by `make bench-fidelity`
(docs/evidence/simulator.md, seed 1). Intervals are the defaults of Slurm and flexod. The start grows with the
model: set your own value."""
