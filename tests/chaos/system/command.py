"""The second part: a whole cluster, one run after the other, each on a lab of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from chaos.report import Part, count
from chaos.system import bounds
from chaos.system.plan import MINUTES, SEEDS, plan
from chaos.system.run import Outcome, run

__all__ = ["SEEDS", "play"]
_AROUND_S = 75.0
"""What a run takes besides, on two cores: its lab, its jobs' beginning and their end."""


def play(seeds: Sequence[int], minutes: float, keep: Path, so_far: Callable[[Part], None]) -> Part:
    """Run all of them; `so_far` hears after each. What was written in those that failed goes into `keep`."""
    outcomes: list[Outcome] = []
    for number, seed in enumerate(seeds, 1):
        each_s = median(outcome.seconds for outcome in outcomes) if outcomes else 60 * minutes + _AROUND_S
        left = (len(seeds) - number + 1) * each_s
        print(
            f"system: run {number} of {len(seeds)}, seed {seed}; about {left / 60:.0f} min left", flush=True
        )
        outcomes.append(outcome := run(plan(seed, minutes), keep / f"system-seed{seed}"))
        print(line(outcome), flush=True)
        so_far(_part(outcomes, minutes))
        if not outcome.well:
            again = f"--system --seeds {seed}" + (f" --minutes {minutes:g}" if minutes != MINUTES else "")
            print(
                f"        again: make test-chaos ARGS='{again}'; logs: {keep}/system-seed{seed}", flush=True
            )
    return _part(outcomes, minutes)


def line(outcome: Outcome) -> str:
    """One run, for people."""
    waited, paused = (max(each.values(), default=0.0) for each in (outcome.waits_s, outcome.pauses_s))
    told = (
        "well"
        if outcome.well
        else "".join(f"\n        {each.invariant}: {each.what}" for each in outcome.violations)
    )
    return (
        f"{outcome.seconds:6.0f} s  seed {outcome.seed}: {len(outcome.strikes)} failures, "
        f"{outcome.satellites} satellites, {outcome.lent_gpu_s:.0f} GPU seconds on lent servers; "
        f"longest wait {waited:.0f} s, longest pause {paused:.0f} s: {told}"
    )


def _part(outcomes: Sequence[Outcome], minutes: float) -> Part:
    deeds = [(strike.deed, strike.target) for outcome in outcomes for strike in outcome.strikes]
    return Part(
        name="system",
        runs=len(outcomes),
        kills=count(deeds),
        violations=tuple(
            f"seed {run.seed}: {each.invariant}: {each.what}" for run in outcomes for each in run.violations
        ),
        seeds_failed=tuple(outcome.seed for outcome in outcomes if not outcome.well),
        details={
            "minutes": minutes,
            "allowed_wait_s": bounds.TAKEN_BACK_S,
            "longest_wait_s": max((max(run.waits_s.values(), default=0.0) for run in outcomes), default=0.0),
            "longest_pause_s": max(
                (max(run.pauses_s.values(), default=0.0) for run in outcomes), default=0.0
            ),
            "seeds": [asdict(outcome) for outcome in outcomes],
        },
    )
