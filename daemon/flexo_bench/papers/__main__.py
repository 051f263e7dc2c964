"""make bench-papers: published figures beside ours. docs/evidence/papers.md has the cause of each miss."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from flexo_bench.papers import (
    amoeba,
    antman,
    ibm,
    ibm_accuracy,
    ibm_bursts,
    ibm_figures,
    idle,
    lyra,
    pollux,
    report,
)
from flexo_bench.papers.figures import Comparison, Run
from flexo_simulation.comparison import Trial, run_trials
from flexo_simulation.results import SimulatedRun

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "bench" / "papers.json"
TRACES = ROOT.parent / "shared" / "traces"
NEED_TRACES = ("pollux", "idle", "amoeba", "lyra")
PARTS = ("ibm", "ibm-figures", "ibm-bursts", "ibm-accuracy", "antman", *NEED_TRACES)


def main() -> None:
    """Simulate the requested parts; print each table when it is ready; write JSON."""
    options = _parse(sys.argv[1:])
    console = Console(width=max(150, Console().width))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

    def run(trials: Sequence[Trial]) -> tuple[SimulatedRun, ...]:
        done: set[int] = set()

        def told(trial: int, ended: int, jobs: int) -> None:
            if ended == jobs and trial not in done:
                done.add(trial)
                say(f"{len(done)} of {len(trials)}: {trials[trial].label}")

        return run_trials(trials, options.processes, told)

    for part in options.parts:
        if missing := _missing(part):
            print(f"{part} is left out: it needs {missing}", file=sys.stderr)
            continue
        comparison = _part(part, options, say)(run)
        report.show(comparison, console)
        _write(comparison)
    say(f"written: {RESULTS}")


def _missing(part: str) -> str:
    """What the part needs and this machine lacks; "": nothing."""
    if part in NEED_TRACES and not TRACES.exists():
        return f"the traces, which would lie at {TRACES}"
    if part == "ibm-accuracy" and not all(map(find_spec, ("torch", "sklearn"))):
        return "PyTorch and scikit-learn, which make setup installs"
    return ""


def _write(comparison: Comparison) -> None:
    """Write the part's results, and keep other parts' results of earlier runs."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(known | {comparison.name: report.as_json(comparison)}, indent=1) + "\n")


def _part(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> Callable[[Run], Comparison]:
    return {
        "ibm": lambda run: ibm.compare(run, range(1, options.seeds + 1)),
        "ibm-figures": lambda run: ibm_figures.compare(run, range(1, options.seeds + 1)),
        "ibm-bursts": lambda run: ibm_bursts.compare(run, range(1, options.seeds + 1)),
        "ibm-accuracy": lambda _: ibm_accuracy.compare(options.processes, range(1, options.seeds + 1), say),
        "antman": lambda run: antman.compare(run, range(1, options.seeds + 1)),
        "pollux": lambda run: pollux.compare(run, TRACES),
        "idle": lambda run: idle.compare(run, TRACES, options.jobs),
        "amoeba": lambda run: amoeba.compare(run, TRACES, options.jobs),
        "lyra": lambda run: lyra.compare(run, TRACES, options.jobs),
    }[name]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-papers ARGS=", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--seeds", type=int, default=5, help="of generated jobs and of trainings (default: 5)"
    )
    parser.add_argument("--jobs", type=int, help="only the first N of the Philly trace (default: all)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
