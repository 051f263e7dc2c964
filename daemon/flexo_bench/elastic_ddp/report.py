"""The benchmark's results as JSON, and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flexo_bench.elastic_ddp.results import KINDS, RIVALS, TORCHRUN, Figures, Sample
from flexo_bench.runtime.report import finite
from flexo_bench.runtime.words import spread

WORDS = {
    "flexo_ddp": "flexo, script of DDP", "flexo_horovod": "flexo, script of Horovod",
    "torchft": "torchft, README's settings", "torchft_tuned": "torchft, join timeout 1 s",
    "torchrun": "torchrun, restart",
}  # fmt: skip
DEFINITIONS = {
    "join, leave, kill": "from 2 to 3 workers; from 3 to 2 workers as planned; SIGKILL of the third worker",
    "pause_s": "of the slowest worker that stays: from the end of its last step before the change to the end "
    "of the first new one after it, less one step at the new size; median",
    "around_s": "what five steps before the change and five after it took longer than undisturbed "
    "ones; median",
    "step_ratio_vs_ddp": "time of a step at 2 workers, over that of plain DDP in the same pair; median",
    "cpu_ratio_vs_ddp": "CPU time of the two workers for a step, likewise; all_cpu_ratio_vs_ddp: with the "
    "processes that start and watch them",
    "..._interval": "holds the true median with 95% confidence; its ends are values",
}


def as_json(figures: Figures) -> dict[str, Any]:
    """The results as JSON: medians first, then every value."""
    found: dict[str, Any] = {}
    for rival in RIVALS:
        found |= _of(rival, figures)
    goals = list(figures.goals())
    found |= {
        "goals": {g.name: {"value": g.value, "to_reach": g.wanted, "verdict": g.verdict} for g in goals},
        "failures": figures.failures,
        "command": figures.command,
        "machine": figures.machine,
        "seconds": round(figures.seconds, 1),
        "definitions": DEFINITIONS,
        "changes": [asdict(each) for each in figures.changes],
        "pairs": [
            {**asdict(each), "step_ratio": each.step_ratio, "cpu_ratio": each.cpu_ratio}
            for each in figures.pairs
        ],
    }
    return {name: finite(value) for name, value in found.items()}


def _of(rival: str, figures: Figures) -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        own, pauses = f"{rival}.{kind}", figures.pause(rival, kind)
        yield from _sample(f"{own}.pause_s", pauses)
        yield from _sample(f"{own}.around_s", figures.around(rival, kind))
        yield f"{own}.n", len(pauses.values)
    yield from _sample(f"{rival}.step_ratio_vs_ddp", steps := figures.step_ratio(rival))
    yield from _sample(f"{rival}.cpu_ratio_vs_ddp", figures.cpu_ratio(rival))
    yield from _sample(f"{rival}.all_cpu_ratio_vs_ddp", figures.all_cpu_ratio(rival))
    yield f"{rival}.pairs", len(steps.values)


def _sample(name: str, sample: Sample) -> Iterator[tuple[str, Any]]:
    yield name, sample.median
    yield f"{name}_interval", sample.interval


def write(figures: Figures, path: Path) -> None:
    """Write the JSON, at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(as_json(figures), indent=1) + "\n")
    fresh.rename(path)


def table(figures: Figures) -> Iterator[str]:
    """The results as lines for people."""
    if figures.changes:
        yield f"\n{'medians (ranges), seconds':36}{'pause':>26}{'cost in all':>26}"
    for kind in KINDS:
        for rival in RIVALS:
            pauses, around = figures.pause(rival, kind), figures.around(rival, kind)
            if pauses.values:
                shown = f"{spread(pauses.values):>26}{spread(around.values):>26}   n={len(pauses.values)}"
                again = "  (3 to 3 workers)" if (rival, kind) == (TORCHRUN, "kill") else ""
                yield f"{kind:7}{WORDS[rival]:29}{shown}{again}"
    if figures.pairs:
        yield f"\n{'over plain DDP; medians (95% intervals)':36}{'time of a step':>26}{'CPU of a step':>27}"
    for rival in RIVALS:
        steps, cpu = figures.step_ratio(rival), figures.cpu_ratio(rival)
        if steps.values:
            shown = f"{_with_interval(steps):>26}{_with_interval(cpu):>26}   n={len(steps.values)}"
            yield f"{WORDS[rival]:36}{shown}"
    yield ""
    for goal in figures.goals():
        value = "-" if goal.value is None else f"{goal.value:.4f}"
        yield f"{goal.name:48} {value:>8}   to reach: {goal.wanted:15} {goal.verdict}"
    for what, why in figures.failures.items():
        yield f"FAILED: {what}: {why.splitlines()[0]}"


def _with_interval(sample: Sample) -> str:
    interval = sample.interval
    ends = "too few" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"
    return f"{sample.median:.4f} ({ends})"
