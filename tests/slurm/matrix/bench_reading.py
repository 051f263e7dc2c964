"""make bench-reading: flexo_bench.reading in the folder system of the release for which pyslurm is built."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys

from matrix import session, systems
from matrix.parts import Part
from matrix.systems import ROOT, SUITES, CannotMake

OUT = ROOT / "build" / "bench" / "reading"
INSIDE = "/out/reading.json"


def main(options: list[str]) -> int:
    """0 if the benchmark ended well; its output is printed then, as its last lines are otherwise."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    suite = next(suite for suite in SUITES if suite.pyslurm)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    words = ["python", "-m", "flexo_bench.reading", *options, "--json", INSIDE]
    try:
        print(f"{suite.name}: the folder system and pyslurm (made in minutes where they are not there)")
        system = systems.system(suite)
        print(f"pyslurm: {systems.pyslurm(system)}; progress: {OUT}/reading.log", flush=True)
        part = Part("reading", "", command=("sh", "-c", shlex.join(words)))
        session.run(system, (part,), OUT)
    except CannotMake as reason:
        print(f"NOT MEASURED: {reason}")
        return 1
    print((OUT / "reading.log").read_text(errors="replace"))
    outcome = json.loads((OUT / "result.json").read_text())["parts"]["reading"]
    return int(bool(outcome["failed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
