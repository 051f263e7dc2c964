"""make bench-yarn: how soon elastic jobs on YARN grow, what their own process costs, and what polls cost."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexo_bench.runtime import machine
from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_bench.yarn import grants, polling, process
from flexo_bench.yarn.report import Report

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench-yarn"
PARTS = ("grants", "process", "polling")
SCHEDULING = {"asynchronous": True, "heartbeats": False}


def main() -> None:
    """Measure part by part, print, write after each. A missed goal is no failure."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    report = Report(_command(), machine.facts())
    try:
        _measure(options, report, tell)
    except KeyboardInterrupt:
        sys.exit("make bench-yarn: interrupted; what was measured before is in " + str(options.json))
    for line in report.lines():
        print(line)
    print(f"\nwritten: {options.json}; repeat with: {report.command}")


def _measure(options: argparse.Namespace, report: Report, tell: polling.Tell) -> None:
    with tempfile.TemporaryDirectory(prefix="flexo-bench-yarn-") as folder:
        for part in options.parts:
            own = Path(folder) / part
            own.mkdir()
            if part == "grants":
                report.grants = grants.measure(options.grants, own, tell)
            elif part == "process":
                report.costs = process.measure(options.seconds, own, tell)
            else:
                _poll(options, report, tell)
            report.write(options.json)


def _poll(options: argparse.Namespace, report: Report, tell: polling.Tell) -> None:
    how = polling.Options(
        node_beat_s=options.node_beat,
        master_beat_s=options.master_beat,
        polls=options.polls,
        rounds=options.rounds,
        stretch_s=options.seconds,
        warm_s=options.warm_up,
    )
    for nodes in options.nodes:
        for name in options.scheduling:
            report.polled.append(polling.measure(nodes, how, tell, asynchronous=SCHEDULING[name]))
            report.write(options.json)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-yarn",
        description=__doc__,
        epilog="Options go into ARGS: make bench-yarn ARGS='--parts polling --nodes 2000 4000'",
    )
    several: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    add = parser.add_argument
    add("--parts", choices=PARTS, default=list(PARTS), help=f"of {', '.join(PARTS)}; default: all", **several)
    add("--grants", type=int, default=24, help="GPUs that get free (%(default)s)")
    add("--seconds", type=float, default=40.0, help="of each watched time (%(default)s)")
    add("--nodes", type=int, nargs="+", default=[2000], help="simulated nodes (%(default)s)")
    how = "asynchronous (the default of Hadoop 3.5), heartbeats (that of earlier releases); default: both"
    add("--scheduling", choices=list(SCHEDULING), default=list(SCHEDULING), help=how, **several)
    add("--node-beat", type=float, default=1.0, help="seconds, of nodes; YARN's default is %(default)s")
    add("--master-beat", type=float, default=3.0, help="seconds, of ApplicationMasters (%(default)s)")
    add("--polls", type=int, default=40, help="polls that are timed (%(default)s)")
    add("--warm-up", type=float, default=60.0, help="seconds of polls before anything is timed (%(default)s)")
    add("--rounds", type=int, default=3, help="each without and with flexod (%(default)s)")
    add("--json", type=Path, default=BUILD / "report.json", help="where the results go")
    options = parser.parse_args(arguments)
    for name in ("grants", "polls", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: 1 or more are allowed")
    for name in ("seconds", "node_beat", "master_beat", "warm_up"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: more than 0 is allowed")
    if wrong := [each for each in options.nodes if not 10 <= each <= 20_000]:
        parser.error(f"--nodes {wrong[0]}: 10 to 20000 are allowed")
    return options


def _command() -> str:
    words = sys.argv[1:]
    return "make bench-yarn" + (f" ARGS='{' '.join(words)}'" if words else "")


if __name__ == "__main__":
    main()
