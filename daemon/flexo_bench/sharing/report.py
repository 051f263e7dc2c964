"""Prints the figures as a table, and writes them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flexo_bench.sharing.results import MEMORY_GOALS, WAYS, Figures

NOT_ON_THE_CPU = (
    "guarantee job at most 1% slower where it keeps the GPU up to 60% busy",
    "opportunistic job gets 70% of the leftover",
    "99th percentile of steps 5% longer",
    *(goal for goal, _, _ in MEMORY_GOALS),
    "live state out at 50 ms per GB",
    "AntMan's Table 2",
)


def write(figures: Figures, path: Path) -> None:
    """Replace the file. What was measured so far survives whatever comes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(figures.as_json(), indent=1) + "\n")
    beside.replace(path)


def table(figures: Figures) -> Iterator[str]:
    """Lines for people."""
    yield f"device: {figures.device}; PyTorch {figures.torch}; {figures.date}"
    heads = f"{'guarantee job':>14} {'p99 of steps':>13} {'opportunistic':>14} {'rounds':>7}"
    yield f"{'pair':34} {'way':12} {heads}"
    for pair, ways in figures.pairs.items():
        for way in (each for each in WAYS if each in ways):
            slowdown, share = figures.slowdowns(pair, way).median or 0.0, figures.share(pair, way) or 0.0
            p99 = figures.p99(pair, way)
            tail = "too few" if p99 is None else f"{p99:+.1%}"
            yield f"{pair:34} {way:12} {slowdown:>+13.1%} {tail:>13} {share:>13.1%} {len(ways[way]):>7}"
        yield f"{pair:34} unthrottled > duty > gate: {'yes' if figures.ordered(pair) else 'NO'}"
    overhead = figures.as_json()["overhead_unshared"]
    if overhead is not None:
        ends = figures.overhead.interval
        told = f" ({ends[0]:+.2%} to {ends[1]:+.2%})" if ends else ""
        yield f"CPU seconds of an unshared job: {overhead:+.2%}{told}: {figures.overhead.verdict()}"
    for goal, verdict in (figures.goals | figures.memory_verdicts()).items():
        yield f"goal: {goal}: {verdict}"
