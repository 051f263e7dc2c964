"""The first part: processes of single elastic jobs are killed and stopped; two jobs at a time on one lab."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from chaos.harness import Outcome, cluster, run
from chaos.plan import SEEDS, plan
from chaos.report import Part, count

__all__ = ["SEEDS", "play"]


def play(seeds: Sequence[int], core: str, at_once: int, keep: Path) -> Part:
    """Run all of them. Logs of those that failed, or of few, are copied into `keep`."""
    began = time.monotonic()
    outcomes: list[Outcome] = []
    print(f"bringing up a Slurm cluster; {len(seeds)} runs with --core={core}", flush=True)
    with cluster() as lab, ThreadPoolExecutor(at_once) as pool:
        runs = [pool.submit(run, lab, plan(seed), lab.scratch / f"seed{seed}", core) for seed in seeds]
        for done in as_completed(runs):
            outcome = done.result()
            outcomes.append(outcome)
            print(f"{time.monotonic() - began:6.0f} s  {line(outcome)}", flush=True)
            if not outcome.well:
                print(f"         again: make test-chaos ARGS='--jobs --core {core} --seeds {outcome.seed}'")
            if len(seeds) < 5 or not outcome.well:
                _keep_logs(lab.scratch / f"seed{outcome.seed}", keep)
    return _part(outcomes, core, time.monotonic() - began)


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


def _part(outcomes: Sequence[Outcome], core: str, seconds: float) -> Part:
    outcomes = sorted(outcomes, key=lambda each: each.seed)
    return Part(
        name="jobs",
        runs=len(outcomes),
        kills=count([(each.deed, each.victim) for each in outcomes if each.hit]),
        violations=tuple(f"seed {each.seed}: {wrong}" for each in outcomes for wrong in each.wrong),
        seeds_failed=tuple(each.seed for each in outcomes if not each.well),
        details={
            "core": core,
            "restarted": sum(each.restarted for each in outcomes),
            "longest_pause_s": max((each.paused_s for each in outcomes), default=0.0),
            "seconds": round(seconds, 1),
            "seeds": [asdict(each) for each in outcomes],
        },
    )
