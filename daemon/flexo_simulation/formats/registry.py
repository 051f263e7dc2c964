"""The formats that traces are read in, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexo_simulation.costs import POLLUX, Costs
from flexo_simulation.formats import itp, own, philly, pollux, sacct, tiresias
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.workload import Workload


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How one kind of file is read, and what those who publish such files run their jobs with."""

    name: str
    """As `--format` takes it."""
    help: str
    read: Callable[[Path, ReadOptions], Workload]
    """Raises BadTrace."""
    interval_s: float | None = None
    """How often its authors' own simulator decides; None: whenever something happens."""
    costs: Costs | None = None
    """What its authors charge for starts and changes; None: they say nothing."""


FORMATS: Final = {
    each.name: each
    for each in (
        TraceFormat("own", "flexo's own CSV, easy to write by hand", own.read),
        TraceFormat("sacct", "a dump of Slurm's accounting: sacct --parsable2", sacct.read),
        TraceFormat(
            "pollux", "workloads of Pollux (OSDI 2021) with their profiles", pollux.read, 60.0, POLLUX
        ),
        TraceFormat("philly", "Microsoft's Philly cluster, as petuum/adaptdl parsed it", philly.read),
        TraceFormat("itp", "Microsoft's ITP clusters (microsoft/elasticflow-traces)", itp.read),
        TraceFormat("tiresias", "jobs of Tiresias' simulator (SymbioticLab/Tiresias)", tiresias.read),
    )
}
"""By name."""
