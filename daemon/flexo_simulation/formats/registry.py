"""The formats that traces are read in, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexo_simulation.costs import POLLUX, Costs
from flexo_simulation.formats import itp, own, philly, pollux, sacct_dump, tiresias, yarn_dump
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.workload import Workload


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format of traces: its reader, and the settings with which its authors run their jobs."""

    name: str
    """The name that `--format` takes."""
    help: str
    read: Callable[[Path, ReadOptions], Workload]
    """Reads a file. Raises BadTrace."""
    interval_s: float | None = None
    """Seconds between two decisions of the authors' own simulator; None: it decides at every event."""
    costs: Costs | None = None
    """The authors' costs of starts and changes; None: they state none."""


FORMATS: Final = {
    each.name: each
    for each in (
        TraceFormat("own", "flexo's own CSV, easy to write by hand", own.read),
        TraceFormat("sacct", "a dump of Slurm's accounting: sacct --parsable2", sacct_dump.read),
        TraceFormat("yarn", "a dump of YARN's applications: flexo yarn history", yarn_dump.read),
        TraceFormat(
            "pollux", "workloads of Pollux (OSDI 2021) with their profiles", pollux.read, 60.0, POLLUX
        ),
        TraceFormat("philly", "Microsoft's Philly cluster, as petuum/adaptdl parsed it", philly.read),
        TraceFormat("itp", "Microsoft's ITP clusters (microsoft/elasticflow-traces)", itp.read),
        TraceFormat("tiresias", "jobs of Tiresias' simulator (SymbioticLab/Tiresias)", tiresias.read),
    )
}
"""All formats, by name."""
