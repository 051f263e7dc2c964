"""How long things take on a Slurm cluster with flexo: what a simulation of one charges.

All in seconds, and none of them known without measuring: `make bench-fidelity` measures them on a lab.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from flexo_simulation import costs


@dataclass(frozen=True, slots=True)
class StartTime:
    """How long workers take that start together: longer the more they are, where they share cores."""

    first_s: float = 0.0
    """Of one worker."""
    more_s: float = 0.0
    """For each worker beside it."""

    def of(self, workers: int) -> float:
        """Of so many."""
        return self.first_s + self.more_s * max(0, workers - 1)


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """Delays of Slurm, of flexod and of elastic jobs. Jobs that are not elastic start and end at once."""

    submit_s: float = 0.0
    """From a job's submission until Slurm has started it, if there is room."""
    free_s: float = 0.0
    """From a job's end until Slurm has started one that waits for its GPUs."""
    backfill_s: float = 30.0
    """Between two of Slurm's looks at everything that waits (bf_interval)."""
    boot: StartTime = field(default_factory=StartTime)
    """From the start of a base until its script trains."""
    end_s: float = 0.0
    """From the last mini-batch of an elastic job until the job has ended."""
    look_s: float = 2.0
    """From one look of flexod's at the cluster to the next ([controller] min_interval_s)."""
    satellite_s: float = 0.0
    """From a grant until its satellite runs, if there is room."""
    warm: StartTime = field(default_factory=StartTime)
    """From then until its workers train with the others, who train on meanwhile."""
    leave_s: float = 0.0
    """From the word that a satellite is to leave until one that waits for its GPUs has started."""
    join_s: float = 0.0
    """How long all workers stand still when others join them."""
    part_s: float = 0.0
    """And when some of them leave."""
    min_resize_interval_s: float = 60.0
    """As in flexod's [controller]: between two resizes of one job."""

    def but(
        self,
        boot_s: float | None = None,
        pause_s: float | None = None,
        warm_s: float | None = None,
        look_s: float | None = None,
    ) -> SlurmTimes:
        """The same but for what is said, whatever the number of workers."""
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
"""On a lab whose nodes are one machine: booting, warming up and standing still by `make bench-runtime`
(docs/resize.md, 11.8 million parameters), the rest by `make bench-fidelity` (docs/simulate.md, seed 1).
Intervals are Slurm's and flexod's defaults. Starting grows with the model: say your own.
"""
