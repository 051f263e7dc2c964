"""make bench-testbed: Lyra's testbed on a real lab and in the simulator. A missed goal is no failure."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flexo_bench.fidelity import calibration
from flexo_bench.fidelity.running import lab_with
from flexo_bench.runtime import machine
from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_bench.testbed import report, running, workload
from flexo_bench.testbed.figures import Pair
from flexo_bench.testbed.printed import JOBS
from flexo_bench.testbed.simulating import SCHEMES, simulated_course

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
Tell = Callable[[str], None]


def main() -> None:
    """Calibrate, run the schemes in both worlds, compare, and write the results."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    if options.again:
        pairs = [pair for path in options.again for pair in report.simulated_anew(path)]
        facts = report.machine_of(options.again[0])
    else:
        facts = machine.facts()
        pairs = _in_folder(options, facts, tell)
    found = report.Found(_command(), facts, tuple(pairs), report.variants_of(pairs))
    for line in report.table(found):
        print(line)
    report.write(found, options.json)
    picture = options.json.with_suffix(".png")
    report.draw(found, picture)
    print(f"\nwritten: {options.json}, {picture}; repeat with: {found.command}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-testbed ARGS=", description=__doc__)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), metavar="NAME",
                        help=f"of {', '.join(SCHEMES)}; all by default")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=JOBS, help="in the workload (%(default)s)")
    parser.add_argument("--minutes", type=float, default=12.0,
                        help="how long the slides' eight hours are (%(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of jobs and demand (%(default)s)")
    parser.add_argument("--json", type=Path, default=BUILD / "testbed.json", help="where the results go")
    parser.add_argument(
        "--again", type=Path, nargs="+", metavar="FILE",
        help="no lab: simulate anew what these files say that it did, and compare with that",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the jobs' logs")
    return parser.parse_args(arguments)


def _in_folder(options: argparse.Namespace, facts: dict[str, Any], tell: Tell) -> list[Pair]:
    """Run all schemes, with the jobs' logs in a temporary folder. Each is written as soon as it is known."""
    folder = Path(tempfile.mkdtemp(prefix="flexo-testbed-"))
    folder.chmod(0o755)
    try:
        pairs: list[Pair] = []
        for pair in _pairs(options, folder, tell):
            pairs.append(pair)
            report.write(report.Found(_command(), facts, tuple(pairs)), options.json)
        return pairs
    finally:
        if options.keep:
            tell(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _pairs(options: argparse.Namespace, folder: Path, tell: Tell) -> Iterator[Pair]:
    seconds = 60 * options.minutes
    jobs = workload.draw(options.seed, seconds, options.jobs)
    needs = workload.needs(options.seed, seconds)
    samples, intervals = _calibrate(folder / "calibration", tell)
    found = calibration.calibrate(samples, intervals)
    for name in options.schemes:
        scheme = SCHEMES[name]
        with lab_with("lyra", _lab_name(), scheme.spec, running.CONTROLLER, scheme.loaning) as lab:
            of_scheme = scheme.jobs(jobs)
            real = running.run(lab, of_scheme, needs if scheme.lends else (), folder / name, tell)
        ours = simulated_course(of_scheme, needs, scheme, found)
        pair = Pair(name, options.seed, seconds, real, ours, found)
        tell(f"{name}: the simulator queues {pair.queue:+.1%} and completes {pair.jct:+.1%} beside the lab")
        yield pair


def _calibrate(folder: Path, tell: Tell) -> tuple[calibration.Samples, calibration.Intervals]:
    """Measure delays on jobs of their own, on a lab like that of the jobs, but without loans."""
    with lab_with("greedy", _lab_name(), running.BASELINE_SPEC) as lab:
        intervals = calibration.Intervals.of(lab)
        samples = calibration.measure(lab, folder, tell)
    resizes_s = float(running.CONTROLLER["min_resize_interval_s"])
    return samples, calibration.Intervals(intervals.backfill_s, resizes_s)


def _lab_name() -> str:
    return f"testbed{os.getpid()}"


def _command() -> str:
    words = sys.argv[1:]
    return "make bench-testbed" + (f" ARGS='{' '.join(words)}'" if words else "")


if __name__ == "__main__":
    main()
