"""make bench-loaning: Lyra's setting with and without loaning. A missed goal is no failure, but explained."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from flexo_bench.loaning import choices, picture, report
from flexo_bench.loaning.cases import CHOOSERS, CHOOSERS_IN, READINGS, Case, Measured, run
from flexo_bench.runtime.rivals import interrupt_on_sigterm

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "bench" / "loaning.json"
PICTURE = ROOT / "build" / "bench" / "loaning.png"
SCALE = 1 / 8
SEEDS = 10


def main() -> None:
    """Simulate the requested cases; print tables; write JSON and a picture.

    After Ctrl-C or SIGTERM, report the seeds that are done.
    """
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()
    cases = list(_cases(options))
    measured: list[Measured] = []
    compared: list[choices.Compared] = []
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.processes, mp_context=fork, initializer=_leave_signals) as pool:
        futures = [pool.submit(_measure, case, options.first_seed) for case in cases]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                one, some = future.result()
                measured.append(one)
                compared += some
                said = f"{number} of {len(cases)}: {one.case.label}"
                print(f"{time.monotonic() - began:6.0f} s  {said}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for simulating in multiprocessing.active_children():
                simulating.terminate()
    found = report.of_whole_seeds(options.scale, cases, measured, compared)
    if not found.measured:
        sys.exit("interrupted before the first seed was done: there is nothing to report")
    report.show(found, Console(width=max(190, Console().width)))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report.as_json(found), indent=1) + "\n")
    picture.draw(found, PICTURE)
    print(f"{time.monotonic() - began:6.0f} s  written: {RESULTS} and {PICTURE}")


def _leave_signals() -> None:
    """Ignore Ctrl-C in a simulation's process: the parent handles Ctrl-C and ends the process by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _measure(case: Case, drawn: int) -> tuple[Measured, list[choices.Compared]]:
    """Run one simulation. For some cases with the heuristic, also compare all choosers on its states."""
    if case.chooser == "heuristic" and case.checkpoints and case.reading == READINGS_IN_FULL:
        measured, compared = choices.compare(case)
        # only the course of one seed is drawn; the courses of all seeds would fill the memory
        return measured if case.seed == drawn else replace(measured, course=()), compared
    return replace(run(case), course=()), []


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    """Cases seed by seed: baselines, then every mode without loaning and with it."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for policy in ("backfill", "lyra"):
            yield Case(seed, options.scale, "baseline", policy=policy)
        for mode in report.LENDING_MODES:
            for reading in (READINGS_IN_FULL,) if options.brief else options.readings:
                without = Case(seed, options.scale, mode, reading=reading)
                yield without
                for case in _of_reading(without, options.brief):
                    yield replace(case, only_asked=options.only_asked)


def _of_reading(without: Case, brief: bool) -> Iterator[Case]:
    """Cases with loaning: with and without checkpoints, in one mode with all choosers.

    `brief` and the other reading have only the case with checkpoints and the heuristic.
    """
    if brief or without.reading != READINGS_IN_FULL:
        yield replace(without, chooser="heuristic")
        return
    for chooser in CHOOSERS if without.mode == CHOOSERS_IN else ("heuristic",):
        yield replace(without, chooser=chooser)
        yield replace(without, chooser=chooser, checkpoints=False)


READINGS_IN_FULL = next(iter(READINGS))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-loaning ARGS=", description=__doc__)
    parser.add_argument("--scale", type=float, default=SCALE, help="of both clusters and the number of jobs")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, help="to do it in several nights (%(default)s)")
    parser.add_argument("--brief", action="store_true", help="what the goals need alone: a third of the time")
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=list(READINGS), help="of a T4")
    parser.add_argument(
        "--only-asked", action="store_true", help="lend no more servers than jobs hold and ask for"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
