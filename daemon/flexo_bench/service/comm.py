"""Part `comm`: gradients averaged by Aggregators beside the torch core's all-reduce, on this machine.

`shm`: all ranks on one node, with its Aggregator. `tcp`: each rank on a pretended node of its own, with an
Aggregator there. Both go through the core, from hvd.allreduce on. `resident`: as many dedicated parameter
servers as ranks. They make the update as well; the others leave it to the worker, so it is timed separately.
CPU time is that of all processes.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from flexo_bench.runtime import machine
from flexo_bench.runtime.results import Goal
from flexo_bench.service.ratios import Ratio, goal_line, ratio_of_medians
from flexo_bench.service.resident.job import push_and_pull, resident_job, update_locally
from flexo_bench.service.setting import Setting
from flexo_bench.service.systems import Node, System, Turn, reduce_gradients, system

ALL_REDUCE, SHM, TCP, RESIDENT = SYSTEMS = ("torch", "shm", "tcp", "resident")
WORK = {ALL_REDUCE: reduce_gradients, SHM: reduce_gradients, TCP: reduce_gradients, RESIDENT: push_and_pull}
UPDATE = "update"
"""The update of the model by every rank, after an all-reduce. It is timed in the same rounds."""
RANKS = (2, 4)
MODEL = "large"
ITERATIONS = 5
"""Iterations in a turn."""
WARM, ROUNDS = 3, 30
QUICK_ROUNDS = 4
GOALS: Final[Mapping[str, float]] = {"comm_ratio.tcp": 1.5, "comm_ratio.shm": 1.0, "cpu_ratio.tcp": 1.8}


def measure(setting: Setting) -> dict[str, Any]:
    """Measure at each number of ranks; see parts.Part."""
    ratios: dict[str, dict[str, dict[str, float]]] = {
        "comm_ratio": {TCP: {}, SHM: {}, RESIDENT: {}},
        "cpu_ratio": {TCP: {}, RESIDENT: {}},
    }
    details: dict[str, Any] = {
        "machine": machine.facts(),
        "model": MODEL,
        "iterations_in_a_round": ITERATIONS,
    }
    rounds = QUICK_ROUNDS if setting.quick else ROUNDS
    goals = []
    for count in RANKS:
        turns = _turns(count, rounds, setting)
        found = compare(turns)
        details[str(count)] = {
            "ms": {name: 1e3 * statistics.median(_seconds(turns[name])) for name in turns},
            "cpu_ms": {name: 1e3 * statistics.median(_cpu(turns[name])) for name in turns},
            "intervals": {name: asdict(ratio) for name, ratio in found.items()},
            "rounds": {name: [asdict(turn) for turn in turns[name]] for name in turns},
        }
        for name, ratio in found.items():
            kind, _, way = name.partition(".")
            if way in ratios[kind]:
                ratios[kind][way][str(count)] = ratio.value
        _show(count, details[str(count)], found)
        setting.keep({**ratios, "comm": details})
        goals += [Goal(f"{name}.{count}", found[name].value, at_most=most) for name, most in GOALS.items()]
    for goal in goals:
        print(goal_line(goal))
    return {**ratios, "comm": details}


def compare(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Ratio]:
    """The ratios to the all-reduce, of times and of CPU times, by their names."""
    found = {}
    for way in (SHM, TCP, RESIDENT):
        found[f"comm_ratio.{way}"] = ratio_of_medians(_seconds(turns[way]), _seconds(turns[ALL_REDUCE]))
        found[f"cpu_ratio.{way}"] = ratio_of_medians(_cpu(turns[way]), _cpu(turns[ALL_REDUCE]))
    return found


def _turns(count: int, rounds: int, setting: Setting) -> dict[str, list[Turn]]:
    """The turns of each system, side by side. The one that begins is another in each round."""
    shapes = model_shapes(MODEL)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-service-")))
        systems: dict[str, System] = {}
        for name in SYSTEMS:
            setting.tell(f"comm: {count} ranks, {name}: starts")
            systems[name] = stack.enter_context(_started(name, count, shapes, folder))
        for name in SYSTEMS:
            systems[name].turn(WORK[name], shapes, WARM * ITERATIONS)
        systems[ALL_REDUCE].turn(update_locally, shapes, WARM * ITERATIONS)
        turns: dict[str, list[Turn]] = {name: [] for name in (*SYSTEMS, UPDATE)}
        for number in range(rounds):
            first = number % len(SYSTEMS)
            for name in (*SYSTEMS[first:], *SYSTEMS[:first]):
                turns[name].append(systems[name].turn(WORK[name], shapes, ITERATIONS))
            turns[UPDATE].append(systems[ALL_REDUCE].turn(update_locally, shapes, ITERATIONS))
            latest = ", ".join(f"{name} {1e3 * _seconds(turns[name])[-1]:.0f}" for name in turns)
            setting.tell(f"comm: {count} ranks, round {number + 1} of {rounds}, ms: {latest}")
        return turns


@contextlib.contextmanager
def _started(name: str, count: int, shapes: Sequence[tuple[int, ...]], folder: Path) -> Iterator[System]:
    if name == RESIDENT:
        with resident_job(count, count, shapes) as rival:
            yield rival.system
        return
    nodes = [Node(1)] * count if name == TCP else [Node(count)]
    with system(name, nodes, folder, aggregated=name != ALL_REDUCE) as ours:
        yield ours


def model_shapes(name: str) -> list[tuple[int, ...]]:
    """The shapes of a model's parameters (runtime/workload.py)."""
    from flexo_bench.runtime.workload import make_model

    return [tuple(parameter.shape) for parameter in make_model(name).parameters()]


def _seconds(turns: Sequence[Turn]) -> list[float]:
    return [statistics.median(turn.seconds) for turn in turns]


def _cpu(turns: Sequence[Turn]) -> list[float]:
    return [turn.cpu_s for turn in turns]


def _show(count: int, details: Mapping[str, Any], found: Mapping[str, Ratio]) -> None:
    print(f"\n{count} ranks, 11.8 million parameters | ms | over torch | CPU ms | over torch")
    for name in SYSTEMS:
        ratios = [
            f"{found[f'{kind}.{name}']}" if name != ALL_REDUCE else "1"
            for kind in ("comm_ratio", "cpu_ratio")
        ]
        times = details["ms"][name], details["cpu_ms"][name]
        print(f"  {name} | {times[0]:.1f} | {ratios[0]} | {times[1]:.1f} | {ratios[1]}")
    times = details["ms"][UPDATE], details["cpu_ms"][UPDATE]
    print(f"  the update in every rank, which only {RESIDENT} includes | {times[0]:.1f} | | {times[1]:.1f}")
