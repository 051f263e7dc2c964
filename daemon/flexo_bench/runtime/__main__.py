"""make bench-runtime: what a resize costs with stock Horovod, stop-restart and flexo on both cores."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from flexo_bench import connecting, leader_lookup, rendezvous
from flexo_bench.runtime import machine, report, resizing, steady, transient
from flexo_bench.runtime.results import (
    CORE_TORCH,
    FLEXOS,
    OURS,
    RESTART,
    STOCK,
    Beside,
    Connecting,
    Figures,
    Resize,
    Steady,
    Transient,
)
from flexo_bench.runtime.rivals import (
    CORES,
    Flexo,
    Rival,
    RivalFailed,
    Stock,
    StopRestart,
    interrupt_on_sigterm,
)
from flexo_lab import LabSpec, bring_up

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
Tell = Callable[[str], None]
RENDEZVOUS = (((2, 4), 3), ((8,), 2), ((16,), 1))
"""Pairs (numbers of ranks, repetitions). Stock Horovod takes half a minute at 16 ranks."""
PARTS = ("pauses", "large", "steady", "transient", "connecting", "rendezvous", "lookup")
RIVALS = (STOCK, RESTART, OURS, CORE_TORCH)


def main() -> None:
    """Measure the requested parts; print a table; write JSON and picture. Missed goals are no failure."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="flexo-bench-"))
    folder.chmod(0o755)
    try:
        figures = _measure(options, folder, tell, lambda: time.monotonic() - began)
    finally:
        if options.keep:
            tell(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for line in report.table(figures):
        print(line)
    report.write(figures, options.json)
    print(f"\nwritten: {options.json}; repeat with: {figures.command}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-runtime",
        description=__doc__,
        epilog="Options go into ARGS: make bench-runtime ARGS='--quick'",
    )
    parser.add_argument("--quick", action="store_true", help="a short trial: too few samples to judge by")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="with commas between them (%(default)s)")
    parser.add_argument(
        "--cycles",
        type=int,
        help="resizes out and in of stock and core_torch (5; 1 with --quick); of others at most 3",
    )
    parser.add_argument(
        "--intervals", type=_numbers, help="of transient: seconds for which GPUs stay (60; 20 with --quick)"
    )
    parser.add_argument("--gpus", type=_counts, default=(1,), help="of transient: GPUs that come and go (1)")
    parser.add_argument(
        "--away", type=float, help="of transient: seconds without them (the longest interval)"
    )
    parser.add_argument("--repeats", type=int, default=1, help="of transient: cycles of each combination (1)")
    parser.add_argument("--json", type=Path, default=BUILD / "runtime.json", help="where the results go")
    parser.add_argument("--keep", action="store_true", help="keep the workers' logs")
    options = parser.parse_args(arguments)
    unknown = set(options.rivals.split(",")) - set(RIVALS)
    if unknown:
        parser.error(f"--rivals {', '.join(sorted(unknown))}: {', '.join(RIVALS)} are allowed")
    options.only = options.only or list(PARTS)
    options.cycles = options.cycles or (1 if options.quick else 5)
    options.intervals = options.intervals or ((20.0,) if options.quick else (60.0,))
    away_s = options.away or max(options.intervals)
    if min(*options.intervals, *options.gpus, away_s, options.repeats) <= 0:
        parser.error("--intervals, --gpus, --away and --repeats: numbers above 0 are allowed")
    options.sweep = transient.Sweep(options.intervals, options.gpus, options.repeats, away_s)
    return options


def _numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them. Raises ValueError."""
    return tuple(float(each) for each in text.split(","))


def _counts(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them. Raises ValueError."""
    return tuple(int(each) for each in text.split(","))


def _measure(options: argparse.Namespace, folder: Path, tell: Tell, elapsed: Callable[[], float]) -> Figures:
    facts, parts = machine.facts(), options.only
    tell(f"{facts['cores']} cores; parts: {', '.join(parts)}")
    resizes: list[Resize] = []
    runs: list[Steady] = []
    borrowing: list[Transient] = []
    with _rivals(options.rivals.split(","), folder, tell) as rivals:
        for part, model in (("pauses", "toy"), ("large", "large")):
            if part in parts:
                resizes += resizing.measure(rivals, model, options.cycles, folder, tell)
        if "steady" in parts:
            pairs, seconds = (1, 5.0) if options.quick else (2, 8.0)
            never_restarted = [rival for rival in rivals if rival.name != RESTART]
            runs += steady.measure(never_restarted, pairs, seconds, folder, tell)
        if "transient" in parts:
            schemes = [rival for rival in rivals if rival.name != STOCK]
            try:
                borrowing.extend(transient.measure(schemes, options.sweep, folder, tell))
            except (RivalFailed, KeyboardInterrupt) as error:  # a sweep takes long: jobs that ended count
                tell(f"transient ends early, after {len(borrowing)} cycles: {error or 'interrupted'}")
    return Figures(
        facts, _command(), resizes, runs, borrowing,
        _connecting(tell, options.quick) if "connecting" in parts else None,
        _rendezvous(tell) if "rendezvous" in parts else None,
        _lookup(tell) if "lookup" in parts else None,
        elapsed(),
    )  # fmt: skip


@contextlib.contextmanager
def _rivals(names: list[str], folder: Path, tell: Tell) -> Iterator[list[Rival]]:
    """The requested rivals. The lab is up while any of them trains, so that all train beside its daemons."""
    with contextlib.ExitStack() as stack:
        rivals: list[Rival] = []
        if STOCK in names:
            rivals.append(Stock())
        if RESTART in names:
            rivals.append(StopRestart())
        if ours := [name for name in FLEXOS if name in names]:
            tell("bringing up a Slurm cluster")
            lab = bring_up(LabSpec(name=f"bench{os.getpid()}", nodes=2, gpus_per_node=8, infer_nodes=0))
            stack.callback(lab.down)
            rivals += [Flexo(lab, name, CORES[name]) for name in ours]
        yield rivals


def _connecting(tell: Tell, quick: bool) -> Connecting:
    sizes = connecting.RANKS[:3] if quick else connecting.RANKS
    tell(f"the core on torch.distributed connects {', '.join(map(str, sizes))} ranks, and broadcasts")
    return connecting.measure(sizes, 3, resizing.BIG)


def _rendezvous(tell: Tell) -> Beside:
    tell("rendezvous at 2, 4, 8 and 16 ranks, stock's and flexo's")
    parts = [rendezvous.measure(sizes, repeats) for sizes, repeats in RENDEZVOUS]
    found = rendezvous.Found(parts[0].step_s, tuple(size for part in parts for size in part.sizes))
    return Beside(asdict(found), tuple(rendezvous.lines(found)))


def _lookup(tell: Tell) -> Beside:
    tell("256 clients look the leader up at once")
    found = leader_lookup.measure(clients=256)
    return Beside(asdict(found), tuple(leader_lookup.lines(found)))


def _command() -> str:
    words = sys.argv[1:]
    return "make bench-runtime" + (f" ARGS='{' '.join(words)}'" if words else "")


if __name__ == "__main__":
    main()
