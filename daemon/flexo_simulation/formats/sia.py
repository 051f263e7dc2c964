"""Reads Sia's public artifact (siasosp23/artifacts): its workloads, with step times on each GPU type.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023).
The files are as those of Pollux. The clusters, costs of a restart, epochs and slowdowns are not in its files,
but in its code (`simulator_config.py` and `applications.py`): they are repeated here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from flexo.clusters.simulated.nodes import NodeGroup, make_nodes
from flexo_simulation.costs import Costs
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.pollux import COLUMNS, measured_job
from flexo_simulation.formats.reading import ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, rows_of_csv
from flexo_simulation.pollux_profiles import BadProfile, Declared, load_declared
from flexo_simulation.pollux_training import PolluxTraining
from flexo_simulation.workload import TraceJob, Workload

TRACES: Final = ("philly", "saturn", "newtrace")
"""Its traces, each of several workloads; the paper calls saturn Helios."""
INTERVAL_S: Final = 60.0
"""Seconds between two decisions of Sia."""
RESTART_S: Final = {
    "bert": 120.0,
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 15.0,
    "yolov3": 80.0,
}
"""Per application: seconds without training at each start and change (`applications.py`)."""
_DECLARED: Final = {
    "bert": Declared(2, slowdown=1.2, room_by_placement=True),
    "cifar10": Declared(100, slowdown=1.8, room_by_placement=True),
    "deepspeech2": Declared(80, slowdown=1.2, room_by_placement=True),
    "imagenet": Declared(90, slowdown=1.2, room_by_placement=True),
    "ncf": Declared(10, slowdown=1.5, room_by_placement=True),
    "yolov3": Declared(50, slowdown=1.2, room_by_placement=True),
}


@dataclass(frozen=True)
class SiaCluster:
    """A cluster of Sia's simulator. All nodes of a group are of one GPU type."""

    name: str
    nodes: tuple[NodeGroup, ...]

    @cached_property
    def type_of(self) -> dict[str, str]:
        """The GPU type of each node, by name, in the order of Sia's node numbers within each type."""
        return {node.name: node.gpu_type for node in make_nodes(self.nodes)}

    def node(self, gpu_type: str, number: int) -> str | None:
        """The name of Sia's node `number`, from 0 within its GPU type; None: there is no such node."""
        names = [name for name, each in self.type_of.items() if each == gpu_type]
        return names[number] if 0 <= number < len(names) else None


EQUAL: Final = SiaCluster("equal", (NodeGroup(16, 4, "aws", "aws"),))
"""64 equal GPUs: 16 nodes with 4 T4 each."""
MIXED: Final = SiaCluster(
    "mixed",
    (NodeGroup(6, 4, "aws", "aws"), NodeGroup(2, 8, "dgx-ext", "dgx-ext"), NodeGroup(3, 8, "rtx", "rtx")),
)
"""64 GPUs of three types: 24 T4, 16 A100 and 24 RTX 2080 Ti."""
CLUSTERS: Final = {cluster.name: cluster for cluster in (EQUAL, MIXED)}


def numbers(folder: Path, trace: str) -> tuple[int, ...]:
    """The numbers of the workloads of `trace`, ascending. Raises BadTrace if there is none."""
    found = [
        int(match[1])
        for path in (_simulator(folder) / "workloads" / trace).glob("workload-*.csv")
        if (match := re.fullmatch(r"workload-(\d+)", path.stem))
    ]
    if not found:
        raise BadTrace((f"{_simulator(folder) / 'workloads' / trace}: holds no workload-<number>.csv",))
    return tuple(sorted(found))


def read(folder: Path, trace: str, number: int, cluster: SiaCluster) -> Workload:
    """Read the jobs of one workload, for `cluster`. Raises BadTrace.

    `folder`: that of the artifact. A job can be on GPUs of any one type, and changes type from one run to the
    next. Each job has Sia's cost of a restart of its application.
    """
    path = _simulator(folder) / "workloads" / trace / f"workload-{number}.csv"
    profiles = _simulator(folder) / "traces"
    sieve = Sieve(path, ReadOptions())
    with opened(path) as file:
        rows = rows_of_csv(file, sieve.name, COLUMNS)
        return sieve.workload(sieve.sift(rows, lambda row: _job(row, profiles, cluster)), begin=0.0)


def _simulator(folder: Path) -> Path:
    simulator = folder / "sia-simulator"
    if not simulator.is_dir():
        raise BadTrace((f"{simulator} is no folder: {folder} is not the folder of siasosp23/artifacts",))
    return simulator


def _job(row: Row, profiles: Path, cluster: SiaCluster) -> TraceJob:
    name = row.text("application")
    if name not in _DECLARED:
        raise row.refusal("application", f"one of {', '.join(_DECLARED)}")
    try:
        job = measured_job(row, _training(profiles, name, cluster))
    except BadProfile as error:
        raise BadTrace((str(error),)) from error
    return replace(job, costs=Costs(start_s=RESTART_S[name], resize_s=RESTART_S[name]))


@lru_cache(maxsize=32)
def _training(profiles: Path, name: str, cluster: SiaCluster) -> PolluxTraining:
    """The training of any job of an application; the job's batch is still missing. Raises BadProfile."""
    declared = _DECLARED[name]
    types = dict.fromkeys(cluster.type_of.values())
    measured = {each: load_declared(profiles, name, declared, each) for each in types}
    first = next(iter(measured.values()))
    if len(measured) == 1:
        return PolluxTraining(first)
    return PolluxTraining(first, on_type=measured, type_of=cluster.type_of)
