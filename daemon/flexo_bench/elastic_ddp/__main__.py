"""make bench-torch: what a change of workers costs a training program with flexo, torchft and torchrun."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flexo_bench.elastic_ddp import paired, report, resizes
from flexo_bench.elastic_ddp.paired import Plan
from flexo_bench.elastic_ddp.results import FLEXO_DDP, FLEXO_HOROVOD, RIVALS, Changed, Figures, Pair
from flexo_bench.elastic_ddp.rivals import contender
from flexo_bench.runtime import machine
from flexo_bench.runtime.rivals import RivalFailed, interrupt_on_sigterm
from flexo_bench.runtime.workload import SAMPLES
from flexo_lab import Lab, LabSpec, bring_up

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
PARTS = ("resizes", "steady")
CYCLES, PAIRS, MOST_PAIRS, TURN_S = 12, 6, 40, 2.5
Tell = Callable[[str], None]


def main() -> None:
    """Measure the requested parts; print a table; write JSON. Only a rival that fails is a failure."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="flexo-bench-"))
    folder.chmod(0o755)
    run = _Run(options, folder, tell, began)
    try:
        run.measure()
    finally:
        if options.keep:
            tell(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        for line in report.table(run.figures()):
            print(line)
    print(f"\nwritten: {options.json}; repeat with: {run.figures().command}")
    sys.exit(1 if run.failures else 0)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-torch",
        description=__doc__,
        epilog="Options go into ARGS: make bench-torch ARGS='--quick'",
    )
    parser.add_argument("--quick", action="store_true", help="a short trial: too few samples to judge by")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="with commas between them (%(default)s)")
    parser.add_argument(
        "--cycles", type=int, help=f"leaves and kills of each rival ({CYCLES}; 1 with --quick)"
    )
    parser.add_argument(
        "--pairs", type=int, help=f"pairs of flexo_ddp, at most ({MOST_PAIRS}; 1 with --quick)"
    )
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of an epoch (%(default)s)")
    parser.add_argument("--json", type=Path, default=BUILD / "torch.json", help="where the results go")
    parser.add_argument("--keep", action="store_true", help="keep the workers' logs")
    options = parser.parse_args(arguments)
    options.rivals = options.rivals.split(",")
    if unknown := set(options.rivals) - set(RIVALS):
        parser.error(f"--rivals {', '.join(sorted(unknown))}: {', '.join(RIVALS)} are allowed")
    options.only = options.only or list(PARTS)
    options.cycles = options.cycles or (1 if options.quick else CYCLES)
    options.pairs = options.pairs or (1 if options.quick else MOST_PAIRS)
    return options


@dataclass
class _Run:
    """One run of the benchmark. What it has measured is written after each part of each rival."""

    options: argparse.Namespace
    folder: Path
    tell: Tell
    began: float

    def __post_init__(self) -> None:
        self.changes: list[Changed] = []
        self.pairs: list[Pair] = []
        self.failures: dict[str, str] = {}
        self._machine = machine.facts()

    def figures(self) -> Figures:
        """What is measured so far."""
        return Figures(
            self._machine, _command(), tuple(self.changes), tuple(self.pairs), dict(self.failures),
            time.monotonic() - self.began,
        )  # fmt: skip

    def measure(self) -> None:
        """Measure all parts."""
        self.tell(f"{self._machine['cores']} cores; rivals: {', '.join(self.options.rivals)}")
        with self._lab() as lab:
            for part in self.options.only:
                for rival in self.options.rivals:
                    try:
                        self._resizes(rival, lab) if part == "resizes" else self._steady(rival, lab)
                    except RivalFailed as error:
                        self.failures[f"{rival}, {part}"] = str(error)
                        self.tell(f"{rival}, {part}: FAILED: {error}")
                    report.write(self.figures(), self.options.json)

    @contextlib.contextmanager
    def _lab(self) -> Iterator[Lab | None]:
        """A Slurm cluster while any rival trains, if flexo is one of them: all train beside its daemons."""
        if not {FLEXO_DDP, FLEXO_HOROVOD} & set(self.options.rivals):
            yield None
            return
        self.tell("bringing up a Slurm cluster")
        lab = bring_up(LabSpec(name=f"bench{os.getpid()}", nodes=2, gpus_per_node=8, infer_nodes=0))
        try:
            yield lab
        finally:
            lab.down()

    def _resizes(self, name: str, lab: Lab | None) -> None:
        options = self.options
        rival = contender(name, lab)
        for changed in resizes.measure(rival, options.cycles, options.samples, self.folder, self.tell):
            self.changes.append(changed)

    def _steady(self, name: str, lab: Lab | None) -> None:
        least, most = min(PAIRS, self.options.pairs), self.options.pairs
        plan = Plan(least, most if name == FLEXO_DDP else least, TURN_S)
        if self.options.quick:
            plan = dataclasses.replace(plan, turn_s=TURN_S / 2)
        rival = contender(name, lab)
        for pair in paired.measure(rival, plan, self.options.samples, self.folder, self.tell):
            self.pairs.append(pair)


def _command() -> str:
    words = sys.argv[1:]
    return "make bench-torch" + (f" ARGS='{' '.join(words)}'" if words else "")


if __name__ == "__main__":
    main()
