"""Reads the lab's results of earlier runs of the benchmark, to compare them with the present simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flexo.scalability.table import TableSpeed
from flexo_bench.fidelity.calibration import Calibration, Samples
from flexo_bench.fidelity.comparison import Pair, side, simulated_side
from flexo_bench.fidelity.running import Life
from flexo_bench.fidelity.workload import Job
from flexo_simulation.on_slurm.times import SlurmTimes, StartTime


def machine(path: Path) -> dict[str, Any]:
    """The machine of the run that wrote this file."""
    facts: dict[str, Any] = json.loads(path.read_text())["machine"]
    return facts


def pairs(path: Path) -> Iterator[Pair]:
    """Pairs with the lab's figures and calibrations from a file of the benchmark, and a new simulation."""
    for run in json.loads(path.read_text())["runs"]:
        lives = [life_of(job) for job in run["lab"]["jobs"]]
        jobs = tuple(life.job for life in lives)
        found = calibration_of(run["calibration"])
        simulator = simulated_side(jobs, run["policy"], found)
        yield Pair(run["policy"], run["seed"], run["load_average"], side(lives), simulator, found)


def life_of(told: Mapping[str, Any]) -> Life:
    """A job's course from its JSON."""
    sizes = tuple((at, size) for at, size in told["sizes"])
    return Life(
        Job(**told["job"]),
        told["submitted_at"],
        told["began_at"],
        told["ended_at"],
        sizes,
        told.get("preemptions", 0),
    )


def calibration_of(told: Mapping[str, Any]) -> Calibration:
    """Delays and speeds from their JSON."""
    times: dict[str, Any] = {
        name: StartTime(**value) if isinstance(value, dict) else value
        for name, value in told["times"].items()
    }
    samples: dict[str, Any] = {
        name: {int(number): each for number, each in value.items()} if isinstance(value, dict) else value
        for name, value in told["samples"].items()
    }
    speed = TableSpeed.of({int(workers): rate for workers, rate in told["speed"].items()})
    return Calibration(SlurmTimes(**times), speed, Samples(**samples))
