"""make bench-fidelity: one workload on a real Slurm lab and in the simulator, policy by policy."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flexo_bench.fidelity import calibration, earlier, report, running, workload
from flexo_bench.fidelity.comparison import Pair, side, simulated_side
from flexo_bench.runtime import machine
from flexo_bench.runtime.rivals import interrupt_on_sigterm

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
POLICIES = ("backfill", "greedy", "lyra")
Tell = Callable[[str], None]


def main() -> None:
    """Measure delays, run the workload in both worlds, compare. A missed goal is no failure."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    if options.again:
        pairs = [pair for path in options.again for pair in earlier.pairs(path)]
        facts = earlier.machine(options.again[0])
    else:
        facts = machine.facts()
        pairs = _in_folder(options, tell)
    found = report.Found(_command(), facts, tuple(pairs), time.monotonic() - began)
    for line in report.table(found):
        print(line)
    report.write(found, options.json)
    picture = options.json.with_suffix(".png")
    report.draw([pair for pair in pairs if pair.seed == pairs[0].seed], picture)
    print(f"\nwritten: {options.json}, {picture}; repeat with: {found.command}")


def _in_folder(options: argparse.Namespace, tell: Tell) -> list[Pair]:
    """Run all repeats, with their logs in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="flexo-fidelity-"))
    folder.chmod(0o755)
    try:
        seeds = range(options.seed, options.seed + options.repeats)
        return [pair for seed in seeds for pair in _repeat(options, seed, folder / f"seed{seed}", tell)]
    finally:
        if options.keep:
            tell(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-fidelity",
        description=__doc__,
        epilog="Options go into ARGS: make bench-fidelity ARGS='--policies lyra --repeats 3'",
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), metavar="NAME",
                        help=f"of {', '.join(POLICIES)}; all by default")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=10, help="in the workload (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the workload (%(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=1, help="each with the next seed and a calibration of its own"
    )
    parser.add_argument("--json", type=Path, default=BUILD / "fidelity.json", help="where the results go")
    parser.add_argument(
        "--again", type=Path, nargs="+", metavar="FILE",
        help="no lab: simulate anew what these files say that it did, and compare with that",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the jobs' logs")
    return parser.parse_args(arguments)


def _repeat(options: argparse.Namespace, seed: int, folder: Path, tell: Tell) -> Iterator[Pair]:
    """Run every policy on the jobs of one seed, each between two calibrations."""
    jobs = workload.draw(options.jobs, seed)
    before, intervals = _calibrate(folder / "calibration", tell)
    for policy in options.policies:
        with running.lab_with(policy, _lab_name()) as lab:
            load = os.getloadavg()[0]
            lab_side = side(running.run(lab, jobs, folder / policy, tell))
        after, _ = _calibrate(folder / f"calibration-after-{policy}", tell)
        found = calibration.calibrate(before + after, intervals)
        pair = Pair(policy, seed, load, lab_side, simulated_side(jobs, policy, found), found)
        tell(
            f"{policy}, seed {seed}: mean JCT {pair.lab.mean_jct_s:.1f} s in the lab,"
            f" {pair.simulator.mean_jct_s:.1f} s in the simulator"
        )
        yield pair
        before = after


def _calibrate(folder: Path, tell: Tell) -> tuple[calibration.Samples, calibration.Intervals]:
    with running.lab_with("greedy", _lab_name()) as lab:
        return calibration.measure(lab, folder, tell), calibration.Intervals.of(lab)


def _lab_name() -> str:
    return f"fidelity{os.getpid()}"


def _command() -> str:
    words = sys.argv[1:]
    return "make bench-fidelity" + (f" ARGS='{' '.join(words)}'" if words else "")


if __name__ == "__main__":
    main()
