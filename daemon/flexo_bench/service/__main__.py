"""make bench-service: the Parameter Service beside its rivals and beside published figures, part by part.

Each part writes its own keys of build/bench/service.json when it is done, and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_bench.service import results
from flexo_bench.service.parts import PARTS, PartMissing, Setting

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "bench" / "service.json"
TRACES = ROOT.parent / "shared" / "traces"


def main() -> None:
    """Run the requested parts; print tables and, last, the command that repeats them."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    command = "make bench-service" + (f" ARGS='{' '.join(sys.argv[1:])}'" if sys.argv[1:] else "")
    tell = results.progress()
    for name in options.parts:

        def keep(found: Mapping[str, Any], name: str = name) -> None:
            results.merge(RESULTS, name, found, command, quick=options.quick)

        try:
            keep(PARTS[name](Setting(options.quick, TRACES, RESULTS.parent, tell, keep)))
        except PartMissing as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    print(f"written: {RESULTS}; repeat with: {command}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-service ARGS=", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--quick", action="store_true", help="a small part of each; no figures to publish")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
