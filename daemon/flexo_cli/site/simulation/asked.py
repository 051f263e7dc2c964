"""The options of `flexo simulate` as they were typed; `setup` interprets them."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexo.policies.gpu_speeds import MIXED_EFFICIENCY

TO_OUTPUT: Final = "-"
"""Value of an option for a file that means the output."""


@dataclass(frozen=True, slots=True)
class AskedJobs:
    """Options that choose the jobs: a trace, or made-up jobs."""

    trace: Path | None = None
    format: str = ""
    skip_bad: bool = False
    partitions: tuple[str, ...] = ()
    cluster: str = ""
    profiles: Path | None = None
    model: str = ""
    generate: int | None = None
    arrivals: str = "poisson"
    load: float = 0.8
    rate: float | None = None
    longest_s: float | None = None
    seed: int = 0
    batch: str = "auto"
    undeclared: bool = False
    caution: float = 0.0


@dataclass(frozen=True, slots=True)
class AskedElasticity:
    """Options for the elasticity that the simulation assumes of the jobs."""

    share: str | None = None
    of: str = "multi"
    min_factor: float = 0.5
    max_factor: float = 2.0
    min_workers: int | None = None
    max_workers: int | None = None
    fungible_share: str | None = None
    heterogeneous_share: str | None = None


@dataclass(frozen=True, slots=True)
class AskedCluster:
    """Options of the cluster on which the jobs run."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu_types: str = ""
    on_loan: tuple[str, ...] = ()
    gpu_speeds: tuple[str, ...] = ()
    mixed_efficiency: float = MIXED_EFFICIENCY


@dataclass(frozen=True, slots=True)
class AskedCases:
    """Options of the cases that `flexo whatif` simulates under each policy."""

    shares: tuple[str, ...] = ()
    """Shares of elastic jobs."""
    within: str = "all"
    """Minutes that the simulations may take."""


@dataclass(frozen=True, slots=True)
class AskedInference:
    """Options of the inference cluster beside the training cluster."""

    nodes: int | None = None
    """Number of servers; None: there is no inference cluster."""
    gpus: int = 8
    gpu_type: str = ""
    demand: str = "generated"
    lends: bool = True
    interval_s: float = 300.0
    headroom: str = "5%"
    reclaim_s: float = 300.0
    reclaim: str = "heuristic"


@dataclass(frozen=True, slots=True)
class AskedRules:
    """Options of policies, their interval, and the costs of starts and resizes."""

    policies: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    interval_s: float | None = None
    start_cost_s: float | None = None
    resize_cost_s: float | None = None
    estimates: str | None = None
    quotas: tuple[str, ...] = ()
    utilization: str | None = None
    time_limits: bool = False
    checkpoints: bool = True
    on_slurm: bool = False
    warm_up_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """Options of the output."""

    write: Path | None
    json: str | None
    report: Path | None
    quiet: bool
    processes: int
    """Number of simulations at a time; 0: nobody said."""
    command: str
    """The command line as it was typed."""

    def check(self) -> None:
        """Raise OSError for a file whose folder does not exist, before anything is simulated."""
        for path in (self.write, self.report, Path(self.json) if self.json else None):
            if path is not None and not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    @property
    def table(self) -> bool:
        """True if tables are printed: not with --quiet, and not if JSON goes to the output."""
        return not self.quiet and self.json != TO_OUTPUT
