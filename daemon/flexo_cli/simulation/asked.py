"""What the command line of `flexo simulate` asked for, as it was typed: `setup` makes sense of it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexo.policies.gpu_speeds import MIXED_EFFICIENCY

TO_OUTPUT: Final = "-"
"""Where a file is asked for: the output."""


@dataclass(frozen=True, slots=True)
class AskedJobs:
    """Where the jobs come from."""

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
    """What is taken of the jobs."""

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
    """What the jobs run on."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu_types: str = ""
    on_loan: tuple[str, ...] = ()
    gpu_speeds: tuple[str, ...] = ()
    mixed_efficiency: float = MIXED_EFFICIENCY


@dataclass(frozen=True, slots=True)
class AskedInference:
    """The inference cluster beside that."""

    nodes: int | None = None
    """None: there is none."""
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
    """Who decides, when, and what changes cost."""

    policies: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    interval_s: float | None = None
    start_cost_s: float | None = None
    resize_cost_s: float | None = None
    estimates: str | None = None
    quotas: tuple[str, ...] = ()
    time_limits: bool = False
    checkpoints: bool = True
    on_slurm: bool = False
    warm_up_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is to be written and shown."""

    write: Path | None
    json: str | None
    report: Path | None
    quiet: bool
    processes: int
    command: str
    """As it was typed."""

    def check(self) -> None:
        """Raises OSError for a file whose folder is not there: before anything is simulated, not after."""
        for path in (self.write, self.report, Path(self.json) if self.json else None):
            if path is not None and not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    @property
    def table(self) -> bool:
        """Whether people read the output: JSON there leaves no room for anything else."""
        return not self.quiet and self.json != TO_OUTPUT
