"""make bench-sharing: a guarantee job beside an opportunistic one, unthrottled, on a duty cycle, and at
the gate.

All jobs of a pair are there from the start. In each round each way has one turn, in an order that is
drawn, and one turn is the guarantee job's alone. On the CPU all jobs share one core.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_bench.sharing import memory, report
from flexo_bench.sharing.results import (
    DUTY,
    GATE,
    GROWTH,
    TRIM,
    UNTHROTTLED,
    WAYS,
    Figures,
    Overhead,
    Turn,
)
from flexo_bench.sharing.turns import InterleavedJobs, Job, JobFailed

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
PAIRS = {
    "resnet beside perceptron": ("resnet", "perceptron"),
    "transformer beside convolution": ("transformer", "convolution"),
}
ALONE, PLAIN, UNSHARED, COORDINATOR = "alone", "plain", "unshared", "coordinator"
OWN = "own"
ROUNDS, TURN_S, SETTLE_S = 20, 3.0, 0.4
OVERHEAD_KIND = "perceptron"
STEPS_BEFORE_OVERHEAD, TURNS_OF_A_START = 50, 4
LAW_SETTLES_S = 25.0
GIB_ON_THE_CPU = 8


def main() -> None:
    """Measure; print a table; write JSON as results come."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    name = f"pretended (one CPU core of {os.cpu_count()})" if options.cpu else torch.cuda.get_device_name()
    command = "make bench-sharing" + (f" ARGS='{' '.join(sys.argv[1:])}'" if sys.argv[1:] else "")
    figures = Figures(name, torch.__version__, command, datetime.date.today().isoformat())
    if options.cpu:
        figures.goals = dict.fromkeys(report.NOT_ON_THE_CPU, "not measured: no GPU in this run")
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    failed = False
    for part in (*options.pairs, *(["overhead"] if options.overhead else [])):
        try:
            if part == "overhead":
                _overhead(options, figures, tell)
            else:
                _pair(part, options, figures, tell)
        except JobFailed as error:
            failed = True
            tell(f"{part}: FAILED: {error}")
    if not options.cpu:
        _memory(options, figures)
    for line in report.table(figures):
        print(line)
    print(f"\nwritten: {options.json}; repeat with: {command}")
    sys.exit(1 if failed else 0)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-sharing",
        description=__doc__,
        epilog="Options go into ARGS: make bench-sharing ARGS=--cpu",
    )
    parser.add_argument("--cpu", action="store_true", help="a pretended device: all jobs on one core")
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help="of each pair, and half of the starts for the overhead (%(default)s)",
    )
    parser.add_argument("--pairs", default=",".join(PAIRS), help="with commas between them (%(default)s)")
    parser.add_argument("--turn", type=float, default=TURN_S, help="seconds of a turn (%(default)s)")
    parser.add_argument("--core", type=int, default=0, help="the core of all jobs with --cpu (%(default)s)")
    parser.add_argument("--no-overhead", dest="overhead", action="store_false", help="pairs only")
    parser.add_argument("--json", type=Path, default=BUILD / "sharing.json", help="where the results go")
    options = parser.parse_args(arguments)
    options.pairs = [each for each in options.pairs.split(",") if each]
    if unknown := set(options.pairs) - set(PAIRS):
        parser.error(f"--pairs {', '.join(sorted(unknown))}: {', '.join(PAIRS)} are allowed")
    if not options.cpu and not torch.cuda.is_available():
        parser.error("there is no GPU here; ARGS=--cpu pretends one")
    return options


@contextmanager
def _interleaved_jobs(options: argparse.Namespace) -> Iterator[InterleavedJobs]:
    """No jobs yet, in a folder of their own. In the end, all are killed; failed ones' output is printed."""
    folder = Path(tempfile.mkdtemp(prefix="flexo-bench-"))
    turns = InterleavedJobs(folder, options.core if options.cpu else None, "cpu" if options.cpu else "cuda")
    try:
        yield turns
    except JobFailed:
        for log in sorted(folder.glob("*.err")):
            print(log.read_text()[-2000:])
        raise
    finally:
        turns.end()
        shutil.rmtree(folder, ignore_errors=True)


def _pair(pair: str, options: argparse.Namespace, figures: Figures, tell: Callable[[str], None]) -> None:
    """All rounds of one pair."""
    with _interleaved_jobs(options) as turns:
        _rounds(turns, pair, options, figures, tell)


def _rounds(
    turns: InterleavedJobs,
    pair: str,
    options: argparse.Namespace,
    figures: Figures,
    tell: Callable[[str], None],
) -> None:
    guarantee_kind, other_kind = PAIRS[pair]
    gpu = "bench" if options.cpu else "gpu0"
    declared = ["--pretend", f"{gpu}:{GIB_ON_THE_CPU}"] if options.cpu else []
    turns.start_coordinator(GATE, declared)
    guarantees = {
        way: turns.start(
            way, "guarantee", guarantee_kind, *(("layer", "guarantee", gpu) if way == GATE else ())
        )
        for way in (ALONE, *WAYS)
    }
    others = {
        OWN: turns.start(OWN, "other", other_kind),
        UNTHROTTLED: turns.start(UNTHROTTLED, "other", other_kind),
        DUTY: turns.start(DUTY, "other", other_kind, "duty"),
    }
    turns.wait_for_steps([*guarantees.values(), *others.values()])
    _stop_all(turns, (ALONE, OWN, UNTHROTTLED, DUTY))
    others[GATE] = turns.start(GATE, "other", other_kind, "layer", "opportunistic", gpu)
    tell(f"{pair}: the law gets to know the guarantee job")
    turns.wait_for_steps([others[GATE]], 50)
    time.sleep(LAW_SETTLES_S)
    _stop_all(turns, (GATE,))
    drawn = random.Random(pair)
    for number in range(options.rounds):
        ways = [ALONE, OWN, *WAYS]
        drawn.shuffle(ways)
        windows = {}
        for way in ways:
            with turns.turn(way, SETTLE_S):
                began = time.monotonic()
                time.sleep(options.turn)
                windows[way] = (began, time.monotonic())
        alone = _steps_s(guarantees[ALONE], windows[ALONE])
        own = len(others[OWN].within(*windows[OWN]))
        for way in WAYS:
            guarantees[way].check()
            others[way].check()
            steps = _steps_s(guarantees[way], windows[way])
            slowdown = statistics.median(steps) / statistics.median(alone) - 1
            share = len(others[way].within(*windows[way])) / max(own, 1)
            figures.add(pair, way, Turn(slowdown, share, steps, alone))
        report.write(figures, options.json)
        last = {way: figures.pairs[pair][way][-1] for way in WAYS}
        told = ", ".join(
            f"{way} {turn.guarantee_slowdown:+.1%} ({turn.opportunistic_share:.0%})"
            for way, turn in last.items()
        )
        tell(f"{pair}, round {number + 1}: {told}")


def _stop_all(turns: InterleavedJobs, ways: Sequence[str]) -> None:
    for way in ways:
        with turns.turn(way, 0.0):
            pass


def _steps_s(job: Job, window: tuple[float, float]) -> tuple[float, ...]:
    """Seconds from step to step in a window. Raises JobFailed if it took fewer than three steps."""
    ends = [at for at, _ in job.within(*window)]
    if len(ends) < 3:
        raise JobFailed(f"{job.name} took {len(ends)} steps in a turn; use a longer --turn")
    return tuple(later - former for former, later in itertools.pairwise(ends))


def _overhead(options: argparse.Namespace, figures: Figures, tell: Callable[[str], None]) -> None:
    """CPU seconds of a step: a plain job and one with the layer that shares with nobody.

    Two processes with the same work differ in speed by a percent or two, for as long as they live: so each
    measurement starts both anew.
    """
    measured: list[float] = []
    drawn = random.Random(OVERHEAD_KIND)
    for number in range(2 * options.rounds):
        with _interleaved_jobs(options) as turns:
            measured.append(_overhead_of_one_start(turns, options, drawn))
        figures.overhead = Overhead(tuple(measured))
        report.write(figures, options.json)
        tell(f"overhead, start {number + 1}: {measured[-1]:+.2%}; mean {statistics.fmean(measured):+.2%}")


def _overhead_of_one_start(
    turns: InterleavedJobs, options: argparse.Namespace, drawn: random.Random
) -> float:
    """The fraction by which a step with the layer takes more CPU seconds, from turns of two new processes."""
    gpu = "bench" if options.cpu else "gpu0"
    turns.start_coordinator(COORDINATOR, ["--pretend", f"{gpu}:{GIB_ON_THE_CPU}"] if options.cpu else [])
    layer: dict[str, tuple[str, ...]] = {PLAIN: (), UNSHARED: ("layer", "guarantee", gpu)}
    order = drawn.sample([PLAIN, UNSHARED], 2)
    jobs = {way: turns.start(way, "job", OVERHEAD_KIND, *layer[way]) for way in order}
    turns.wait_for_steps(list(jobs.values()), STEPS_BEFORE_OVERHEAD)
    _stop_all(turns, order)
    costs: dict[str, list[float]] = {way: [] for way in order}
    # There and back again: what changes over time falls on both.
    for way in (*order, *reversed(order)) * TURNS_OF_A_START:
        with turns.turn(way, SETTLE_S / 4):
            began = time.monotonic()
            time.sleep(options.turn / 6)
            steps = jobs[way].within(began, time.monotonic())
        if len(steps) < 3:
            raise JobFailed(f"{jobs[way].name} took {len(steps)} steps in a turn; use a longer --turn")
        costs[way].append((steps[-1][1] - steps[0][1]) / (len(steps) - 1))
    return statistics.median(costs[UNSHARED]) / statistics.median(costs[PLAIN]) - 1


def _memory(options: argparse.Namespace, figures: Figures) -> None:
    """Trim and growth of 16 GB in this process, once all jobs have left the GPU."""
    for trim_ms, growth_ms in memory.on_this_gpu(options.rounds):
        figures.memory.setdefault(TRIM, []).append(trim_ms)
        figures.memory.setdefault(GROWTH, []).append(growth_ms)
        report.write(figures, options.json)


if __name__ == "__main__":
    main()
