"""Measures CPU time, wall time and memory of whole simulations, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import scipy.spatial  # noqa: F401 - reading Pollux' profiles imports it late, and it belongs to the start

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies import registry
from flexo_simulation.costs import POLLUX, Costs
from flexo_simulation.elasticity import Elasticity, made_elastic
from flexo_simulation.engine import simulate
from flexo_simulation.formats import philly, pollux
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.scenario import Scenario

_PHILLY_NODES = (NodeGroup(50, 8),)
_POLLUX_NODES = (NodeGroup(16, 4),)
_RESIZE = Costs(start_s=30.0, resize_s=30.0)


@dataclass(frozen=True)
class Cost:
    """The cost of one simulation, including reading its trace."""

    label: str
    start_cpu_s: float
    """CPU time until Python has imported all modules. No other field includes it."""
    cpu_s: float
    wall_s: float
    peak_mib: float
    jobs: int
    events: int
    avg_jct_s: float


def philly_under(policy: str, traces: Path, elastic_share: float, jobs: int | None) -> Cost:
    """Simulate the jobs of the Philly trace on 50 nodes of 8 GPUs. An event is a decision."""
    return _alone(f"philly, {policy}", _philly, policy, traces, elastic_share, jobs)


def pollux_under(policy: str, traces: Path) -> Cost:
    """Simulate workload 6 in Pollux' own setting."""
    return _alone(f"pollux workload-6, {policy}", _pollux, policy, traces)


def _philly(policy: str, traces: Path, elastic_share: float, jobs: int | None) -> tuple[int, int, float]:
    workload = philly.read(traces / "philly" / "philly.csv", ReadOptions())
    if jobs is not None:
        workload = type(workload)(workload.name, workload.jobs[:jobs])
    workload = made_elastic(workload, Elasticity(share=elastic_share), seed=1)
    done = simulate(workload, registry.make(policy), Scenario(_PHILLY_NODES, costs=_RESIZE))
    return done.result.jobs, done.result.events, done.result.avg_jct_s


def _pollux(policy: str, traces: Path) -> tuple[int, int, float]:
    workload = pollux.read(traces / "pollux" / "workloads" / "workload-6.csv", ReadOptions())
    workload = pollux.adapted(workload, choose_batch=policy == "goodput", declare=True)
    scenario = Scenario(_POLLUX_NODES, costs=POLLUX, interval_s=60.0)
    done = simulate(workload, registry.make(policy), scenario)
    return done.result.jobs, done.result.events, done.result.avg_jct_s


def _alone(label: str, work: Callable[..., tuple[int, int, float]], *arguments: object) -> Cost:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(theirs, label, work, arguments))
    process.start()
    theirs.close()
    try:
        cost = mine.recv()
    except EOFError:
        raise RuntimeError(f"{label}: its process ended without a result") from None
    finally:
        process.join()
    assert isinstance(cost, Cost)
    return cost


def _measured(
    answer: Connection, label: str, work: Callable[..., tuple[int, int, float]], arguments: tuple[object, ...]
) -> None:
    began, cpu = time.monotonic(), time.process_time()
    jobs, events, avg_jct_s = work(*arguments)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = time.process_time() - cpu, time.monotonic() - began
    answer.send(Cost(label, cpu, *took, peak_mib, jobs, events, avg_jct_s))
