"""Draws part `case_study`: the speeds of both jobs, and the Aggregators, as in the paper's figure 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

_COLORS = ("#3b82c4", "#e0803a")


def draw(cases: Mapping[str, Any], path: Path) -> None:
    """Write a PNG with a column for each case. `cases`: the figures of the part, by case."""
    figure, axes = plt.subplots(
        2, len(cases), figsize=(5 * len(cases), 4.4), sharey="row", height_ratios=(3, 1), squeeze=False
    )
    for (name, found), speeds, aggregators in zip(cases.items(), *axes, strict=True):
        _draw_speeds(speeds, found["jobs"])
        _draw_aggregators(aggregators, found["stages"])
        speeds.set_title(name.replace("_", " "), fontsize=10)
        for axis in (speeds, aggregators):
            axis.set_xlim(0, found["stages"][-1]["until_s"])
            axis.grid(alpha=0.3)
            for stage in found["stages"][1:]:
                axis.axvline(stage["at_s"], color="grey", linestyle=":", linewidth=1)
    axes[0][0].set_ylabel("speed over that alone")
    axes[1][0].set_ylabel("Aggregators")
    axes[0][0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_speeds(axis: Axes, jobs: Mapping[str, Any]) -> None:
    for (name, job), color in zip(jobs.items(), _COLORS, strict=True):
        points = job["trace"]
        xs, ys = [point["at_s"] for point in points], [point["speed"] for point in points]
        axis.plot(xs, ys, marker=".", color=color, label=name)
    axis.set_ylim(0, 1.25)


def _draw_aggregators(axis: Axes, stages: Sequence[Mapping[str, Any]]) -> None:
    edges = [*(stage["at_s"] for stage in stages), stages[-1]["until_s"]]
    axis.stairs([stage["aggregators"] for stage in stages], edges, color="black", baseline=None)
    axis.set_ylim(0, 4)
    axis.set_xlabel("seconds")
