"""make test-chaos: kill and stop random processes of elastic jobs; nothing may be lost, hang or be left."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from chaos.harness import Outcome, cluster, run
from chaos.plan import SEEDS, plan
from horovod_elastic.core.choice import CORES, DEFAULT_CORE

BUILD = Path(__file__).resolve().parents[2] / "build" / "chaos"
AT_ONCE = 2


def main() -> int:
    """0 if all seeds went well."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse()
    began = time.monotonic()
    seeds = options.seed or list(SEEDS)
    outcomes = []
    print(f"bringing up a Slurm cluster; {len(seeds)} runs with --core={options.core}", flush=True)
    with cluster() as lab, ThreadPoolExecutor(options.at_once) as pool:
        runs = [
            pool.submit(run, lab, plan(seed), lab.scratch / f"seed{seed}", options.core) for seed in seeds
        ]
        for done in as_completed(runs):
            outcome = done.result()
            outcomes.append(outcome)
            print(f"{time.monotonic() - began:6.0f} s  {line(outcome)}", flush=True)
            if options.seed or not outcome.well:
                _keep_logs(lab.scratch / f"seed{outcome.seed}", options.json.parent)
    _write(outcomes, options.core, time.monotonic() - began, options.json)
    failed = [outcome.seed for outcome in outcomes if not outcome.well]
    restarted = sum(outcome.restarted for outcome in outcomes)
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} went well; {restarted} of all restarted "
        f"(nobody was left who held the model); report: {options.json}"
    )
    if failed:
        print(f"failed: {failed}; their logs are beside the report")
        print(f"again: make test-chaos ARGS='--core {options.core} --seed {failed[0]}'")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-chaos",
        description=__doc__,
        epilog="Options go into ARGS: make test-chaos ARGS='--seed 7'",
    )
    parser.add_argument(
        "--seed", type=int, action="append", help="only this one; keeps its logs; may be repeated"
    )
    parser.add_argument("--core", choices=CORES, default=DEFAULT_CORE, help="of the jobs (%(default)s)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"jobs at a time ({AT_ONCE})")
    parser.add_argument("--json", type=Path, default=BUILD / "report.json", help="where the report goes")
    return parser.parse_args()


def line(outcome: Outcome) -> str:
    """One run, for people."""
    rolled = outcome.verdict.rolled_back if outcome.verdict else 0
    told = ("restarted; " if outcome.restarted else "") + ("; ".join(outcome.wrong) or "well")
    return (
        f"seed {outcome.seed:2}: {outcome.deed} {outcome.victim} ({outcome.hit}) after {outcome.at_s:.1f} s: "
        f"stood still {outcome.paused_s:.1f} s, {rolled} mini-batches rolled back, "
        f"{outcome.seconds:.0f} s in all: {told}"
    )


def _keep_logs(folder: Path, build: Path) -> None:
    kept = build / folder.name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)


def _write(outcomes: list[Outcome], core: str, seconds: float, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "core": core,
        "runs": len(outcomes),
        "well": sum(outcome.well for outcome in outcomes),
        "restarted": sum(outcome.restarted for outcome in outcomes),
        "longest_pause_s": max((outcome.paused_s for outcome in outcomes), default=0.0),
        "seconds": round(seconds, 1),
        "seeds": [asdict(outcome) for outcome in sorted(outcomes, key=lambda each: each.seed)],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
