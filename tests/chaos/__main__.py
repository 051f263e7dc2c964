"""make test-chaos: things fail at random, on single jobs and on a whole cluster; nothing may be lost."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from chaos import jobs, report, seeds
from chaos.system import command as system
from chaos.system.plan import MINUTES
from horovod_elastic.core.choice import CORES, DEFAULT_CORE

BUILD = Path(__file__).resolve().parents[2] / "build" / "chaos"
AT_ONCE = 2


def main() -> int:
    """0 if all seeds of all parts went well."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse()
    began = time.monotonic()
    parts: list[report.Part] = []
    keep = options.json.parent

    def write(*more: report.Part) -> None:
        """So that a run that is cut short has told what it found."""
        report.write([*parts, *more], time.monotonic() - began, options.json)

    if options.jobs or not options.system:
        parts.append(jobs.play(options.seeds or jobs.SEEDS, options.core, options.at_once, keep))
        write()
    if options.system or not options.jobs:
        parts.append(system.play(options.seeds or system.SEEDS, options.minutes, keep, write))
    write()
    for part in parts:
        print(report.sentence(part))
    print(f"report: {options.json}")
    return 1 if any(part.seeds_failed for part in parts) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-chaos",
        description=__doc__,
        epilog="Options go into ARGS: make test-chaos ARGS='--system --seeds 1-20' (docs/evidence/chaos.md).",
    )
    parser.add_argument("--jobs", action="store_true", help="only processes of single jobs fail")
    parser.add_argument(
        "--system", action="store_true", help="only on a whole cluster, with daemons and connections"
    )
    ranges = "as in 1-20,25; may be repeated (jobs: 1-50; system: 1-11)"
    parser.add_argument("--seeds", "--seed", type=seeds.parse, action="extend", help=ranges)
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=MINUTES,
        help="how long a whole cluster's parts fail (%(default)s)",
    )
    parser.add_argument("--core", choices=CORES, default=DEFAULT_CORE, help="of single jobs (%(default)s)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"single jobs at a time ({AT_ONCE})")
    parser.add_argument("--json", type=Path, default=BUILD / "report.json", help="where the report goes")
    return parser.parse_args()


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0.3 <= minutes <= 60:
        raise argparse.ArgumentTypeError(f"'{text}': 0.3 to 60 are allowed")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
