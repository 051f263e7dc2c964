"""Draws the benchmark: the inference servers of one simulation over time, and the gains by loaning."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from flexo_bench.loaning import published
from flexo_bench.loaning.cases import READINGS, Measured
from flexo_bench.loaning.report import LENDING_MODES, Found
from flexo_simulation.demand_trace import DAY_S


def draw(found: Found, path: Path) -> None:
    """Write a PNG: the servers of the first seed, and the gains of all seeds."""
    shown = found.of(mode="basic", chooser="heuristic", checkpoints=True, reading="three")[0]
    figure, axes = plt.subplots(2, 1, figsize=(11, 8), height_ratios=(3, 2), layout="constrained")
    _servers(axes[0], shown)
    _gains(axes[1], found)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _servers(axis: plt.Axes, shown: Measured) -> None:
    course = [moment for moment in shown.course if moment.at <= published.DAYS * DAY_S]
    days = np.array([moment.at for moment in course]) / DAY_S
    used = np.array([moment.used for moment in course])
    gpus = READINGS[shown.case.reading].gpus
    held = np.array([moment.held / gpus for moment in course])
    away = np.array([moment.away for moment in course])
    kinds = (
        ("in use by inference", used * 0, used, "#8e6bbf"),
        ("lent, in use by jobs (as whole servers)", used, used + held, "#3b82c4"),
        ("lent, idle", used + held, used + away, "#b9d3ec"),
    )
    for label, low, high, colour in kinds:
        axis.fill_between(days, low, high, step="post", color=colour, linewidth=0, label=label)
    servers = round(READINGS[shown.case.reading].nodes * shown.case.scale)
    axis.axhline(servers, color="black", linewidth=0.8, linestyle="--")
    axis.set(xlim=(0, published.DAYS), ylim=(0, servers * 1.02), xlabel="days", ylabel="inference servers")
    axis.set_title(shown.case.label, fontsize=10)
    axis.legend(ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.06), frameon=False)


def _gains(axis: plt.Axes, found: Found) -> None:
    """Draw ratios of times with loaning to those without, a point for each seed: below 1 is better."""
    places: list[str] = []
    for mode in LENDING_MODES:
        for checkpoints in (True, False):
            like = {"reading": "three", "mode": mode}
            without = found.without("three", mode)
            having = found.of(**like, chooser="heuristic", checkpoints=checkpoints)
            if not without or not having:
                continue
            for shift, colour, name in ((-0.12, "#e0803a", "queue_s"), (0.12, "#2a9d74", "jct_s")):
                ratios = [
                    getattr(b, name)[0] / getattr(a, name)[0]
                    for a, b in zip(without, having, strict=True)
                    if getattr(a, name)[0]
                ]
                axis.plot(
                    [len(places) + shift] * len(ratios), ratios, "o", color=colour, alpha=0.7, markersize=5
                )
            places.append(f"{mode}\n{'checkpoints' if checkpoints else 'no checkpoints'}")
    axis.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(places)), places, fontsize=9)
    axis.set(ylabel="with loaning, to without", ylim=(0, None))
    axis.set_title("mean queueing (orange) and completion (green), a point a seed", fontsize=10)
