"""make test-slurm-matrix: flexo on the releases of Slurm that three releases of Debian have."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from matrix import report, session, systems
from matrix.parts import FULL, SHORT, Part
from matrix.report import PartOutcome, SuiteOutcome
from matrix.systems import ROOT, SUITES, CannotMake, Suite

OUT = ROOT / "build" / "slurm-matrix"
PAGE = ROOT / "docs" / "reference" / "slurm-releases.md"


def main() -> int:
    """0 if all that was run passed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse()
    parts = SHORT if options.short else tuple(part for part in FULL if part.name in options.parts)
    path = options.out / "report.json"
    outcomes = {}
    for suite in (each for each in SUITES if each.name in options.suites):
        outcomes[suite.name] = _run(suite, parts, options.out / suite.name, fresh=options.fresh)
        if options.short:
            continue  # no part of the report
        known = report.read(path)
        merged = {**known, suite.name: report.merged(known.get(suite.name), outcomes[suite.name])}
        report.write(path, {each.name: merged[each.name] for each in SUITES if each.name in merged})
    _tell(outcomes)
    if options.docs:
        report.put_into(PAGE, report.read(path))
        print(f"the table in {PAGE.relative_to(ROOT)} is as the report says")
    return 0 if all(outcome.well for outcome in outcomes.values()) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-slurm-matrix",
        description=__doc__,
        epilog="Options go into ARGS: make test-slurm-matrix ARGS='--suites forky --parts elastic qos'",
    )
    suites, parts = [suite.name for suite in SUITES], [part.name for part in FULL]
    add = parser.add_argument
    add("--suites", nargs="+", choices=suites, default=suites, metavar="SUITE", help=", ".join(suites))
    add("--parts", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    add("--short", action="store_true", help="one elastic job and a few submissions instead")
    add("--fresh", action="store_true", help="make the folder systems anew")
    add("--docs", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    add("--out", type=Path, default=OUT, help="where report.json and logs go")
    return parser.parse_args()


def _run(suite: Suite, parts: Sequence[Part], out: Path, *, fresh: bool) -> SuiteOutcome:
    day = time.strftime("%Y-%m-%d")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.is_file():
            old.unlink()
    print(f"{suite.name}: the folder system (made in minutes where it is not there)", flush=True)
    try:
        system = systems.system(suite, fresh=fresh)
        print(f"{suite.name}: Slurm {system.facts.versions['slurmctld']}, {len(parts)} parts", flush=True)
        wanted = any(part.pyslurm for part in parts)
        pyslurm = systems.pyslurm(system) if wanted else report.NOT_ASKED
        began = time.monotonic()
        session.run(system, parts, out.resolve())
    except CannotMake as reason:
        print(f"{suite.name}: NOT TESTED: {reason}", flush=True)
        return SuiteOutcome("", day, why_not=str(reason))
    result = json.loads((out / "result.json").read_text())
    facts = system.facts
    return SuiteOutcome(
        slurm=result["slurm"],
        day=day,
        versions=facts.versions,
        python=result["python"],
        pyslurm=pyslurm,
        made_in_s=facts.made_in_s,
        size_mb=facts.size_mb,
        session_s=round(time.monotonic() - began, 1),
        parts={name: PartOutcome(**part, commit=_commit()) for name, part in result["parts"].items()},
    )


def _commit() -> str:
    """Of this checkout; with a + where files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _tell(outcomes: report.Report) -> None:
    """A line for each part; what failed below it."""
    passed = failed = 0
    for name, suite in outcomes.items():
        for part, outcome in suite.parts.items():
            passed, failed = passed + outcome.passed, failed + outcome.failed
            counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
            print(f"{name:9} {suite.slurm:20} {part:8} {counts} in {outcome.seconds:.0f} s")
            for failure in outcome.failures:
                print(f"          {failure.splitlines()[0]}")
    failed += sum(bool(suite.why_not) for suite in outcomes.values())
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    sys.exit(main())
