"""Plots the time of one decision by jobs, nodes and range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from flexo_bench.scheduler.decision import FULL, Timed

_AXES: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "jobs": ("jobs, a fifth of them elastic", lambda size: size.jobs),
    "nodes": ("nodes of 8 GPUs", lambda size: size.nodes),
    "range": ("most workers of an elastic job", lambda size: size.most_workers),
}


def draw(sweeps: Mapping[str, Sequence[Timed]], path: Path) -> None:
    """Write a PNG. The error bars show least and most."""
    figure, axes = plt.subplots(1, len(sweeps), figsize=(4.5 * len(sweeps), 3.6), sharey=True)
    for axis, (name, timed) in zip(axes, sweeps.items(), strict=True):
        label, of = _AXES[name]
        sizes = [of(each.size) for each in timed]
        middle = [each.median_s for each in timed]
        below = [each.median_s - each.least_s for each in timed]
        above = [each.most_s - each.median_s for each in timed]
        axis.errorbar(sizes, middle, yerr=[below, above], marker="o", capsize=3)
        axis.set_xlabel(label)
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("CPU seconds of one decision")
    figure.suptitle(
        f"lyra: one decision ({FULL.jobs:,} jobs, {FULL.nodes:,} nodes, ranges to {FULL.most_workers},"
        " but for what is on the axis)"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
