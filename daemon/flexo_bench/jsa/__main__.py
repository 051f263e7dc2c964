"""make bench-jsa: step times of two models, as the job scalability analyzer expects them and as measured.

A job measures this machine's all-reduces. A job of one worker tries batches in its first steps. Then pairs of
workers and batch that neither has seen are measured. Agents, leaders, workers and the core are real. Slurm
and flexod are stand-ins. A missed goal is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from flexo.model.measured import BatchTime
from flexo_bench.jsa.forecasts import MODELS, Analyzed, Measured, forecasts, lines, unseen
from flexo_bench.local_job.assigning import assigning_flexod, variables_of
from flexo_bench.local_job.job import job_of, local_job
from flexo_protos.all_reduce_file import AllReduceTable, parse

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "bench" / "jsa.json"
SCRIPT = Path(__file__).with_name("train.py")
LEAST, LARGEST = 32, 128
"""Samples of the smallest batch that a job accepts, and of the largest that one worker takes in a pass."""
_WEIGHTS = "10000,100000,1000000,3000000,10000000"
_REPEATS = 60
"""Exchanges of each size in the calibration: it is to last longer than a slow spell of the machine."""
_MORE_S = 300.0
"""Time for a job beyond that in which it trains."""

Tell = Callable[[str], None]


def main() -> None:
    """Measure, and print a table; write JSON."""
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="flexo-jsa-"))
    try:
        tell(f"{os.cpu_count()} cores; all-reduces of 2 to {options.workers} workers")
        table = _calibrate(folder, options.workers)
        found = [_analyze(model, options, table, folder, tell) for model in options.models]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in lines(found, table):
        print(line)
    command = "make bench-jsa" + (f" ARGS='{' '.join(sys.argv[1:])}'" if sys.argv[1:] else "")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    facts = {"command": command, "cores": os.cpu_count(), "all_reduce": asdict(table)}
    RESULTS.write_text(json.dumps({**facts, "models": [asdict(each) for each in found]}, indent=1) + "\n")
    print(f"\nwritten: {RESULTS}; repeat with: {command}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-jsa ARGS=", description=__doc__)
    cores = os.cpu_count() or 2
    parser.add_argument(
        "--workers", type=int, default=max(2, cores), help="the most workers: each needs a core (%(default)s)"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--seconds", type=float, default=260.0, help="how long the job trains that makes trials (%(default)s)"
    )
    parser.add_argument(
        "--measure",
        type=float,
        default=60.0,
        help="seconds for which each number of workers is measured (%(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: 2 or more are allowed")
    return options


def _calibrate(folder: Path, workers: int) -> AllReduceTable:
    """The all-reduces of this machine, by the program that administrators run."""
    file = folder / "all_reduce.json"
    options = ("--weights", _WEIGHTS, "--repeats", str(_REPEATS))
    command = [sys.executable, "-m", "horovod_elastic.calibrate", str(file), *options]
    with job_of(folder / "calibrate", command, workers=workers, maximum=workers) as job:
        job.wait(_MORE_S)
    return parse(file.read_text())


def _analyze(
    model: str, options: argparse.Namespace, table: AllReduceTable, folder: Path, tell: Tell
) -> Analyzed:
    tell(f"{model}: a job of one worker trains for {options.seconds:.0f} s, and tries batches first")
    times, weights, trials_s, job_s = _try(model, options.seconds, folder / f"{model}-trials")
    measured: list[Measured] = []
    beside: dict[int, tuple[BatchTime, ...]] = {}
    tried = [each.samples for each in times]
    for workers, batches in unseen(times, options.workers).items():
        tell(f"{model}: {workers} worker{'' if workers == 1 else 's'} with batches {batches}")
        own_folder = folder / f"{model}-{workers}"
        found, beside[workers] = _measure(model, workers, batches, tried, options.measure, own_folder)
        measured += found
    expected = forecasts(times, beside, weights, table, measured)
    return Analyzed(model, weights, times, beside, trials_s, job_s, expected)


def _try(model: str, seconds: float, folder: Path) -> tuple[tuple[BatchTime, ...], int, float, float]:
    """The trials of a job, its weights, the trials' worker seconds, and those of the whole job."""
    arguments = (
        *("--model", model, "--seconds", str(seconds)),
        *("--least", str(LEAST), "--largest", str(LARGEST)),
    )
    with (
        assigning_flexod(try_batches=True) as flexod,
        local_job(
            folder, SCRIPT, *arguments,
            workers=1, maximum=2, batch=f"{LEAST}-{LARGEST}", daemon=flexod.address,
            **variables_of(folder.with_suffix(".secret")),  # type: ignore[arg-type]
        ) as job,
    ):  # fmt: skip
        job.wait(seconds + _MORE_S)
        (started,), (done,) = job.events("started"), job.events("done")
        tried = flexod.tried
    if tried is None or not tried.times:
        raise SystemExit(
            f"{model}: the job has tried no batches within {seconds:.0f} s: --seconds has to be more"
        )
    times = tuple(BatchTime(each.samples, each.step_s, each.steps) for each in tried.times)
    return times, tried.weights, tried.worker_s, done["time"] - started["time"]


def _measure(
    model: str, workers: int, batches: Sequence[int], tried: Sequence[int], seconds: float, folder: Path
) -> tuple[list[Measured], tuple[BatchTime, ...]]:
    """What the steps of each batch take, and beside them those of the tried batches on rank 0 alone.

    A step lasts as long as that of its slowest rank.
    """
    arguments = (
        *("--model", model, "--seconds", str(seconds)),
        *("--measure", ",".join(map(str, batches))),
        *("--alone", ",".join(map(str, tried))),
    )
    turns: dict[tuple[int, int], list[list[float]]] = {}
    alone: dict[int, list[float]] = {}
    with local_job(folder, SCRIPT, *arguments, workers=workers, maximum=workers) as job:
        if job.wait(seconds + _MORE_S):
            raise SystemExit(f"{model}: the job that measures has failed:\n{job.output()}")
        for each in job.events("measured"):
            turns.setdefault((each["batch"], each["turn"]), []).append(each["steps_s"])
        for each in job.events("alone"):
            alone.setdefault(each["batch"], []).extend(each["steps_s"])
    slowest = {
        pair: [max(step) for step in zip(*ranks, strict=True)] for pair, ranks in sorted(turns.items())
    }
    measured = [
        Measured.of(workers, batch, [steps for (of, _), steps in slowest.items() if of == batch])
        for batch in batches
    ]
    return measured, tuple(BatchTime(each, median(alone[each]), len(alone[each])) for each in tried)


if __name__ == "__main__":
    main()
