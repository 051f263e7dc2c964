"""Draws the curves of part `simulation`: savings over server use, loss limit and period."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

_LABELS: Mapping[str, str] = {
    "server_use": "mean use of a dedicated server",
    "loss_limit": "loss limit",
    "period_s": "minutes between two scalings",
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write a PNG. `found`: the figures of the part."""
    curves = found["curve"]
    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.8), sharey=True)
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        unit = 60 if name == "period_s" else 1
        xs = [point[name] / unit for point in points]
        axis.plot(xs, [point["saved"] for point in points], marker="o", color="#3b82c4", label="saved")
        below = [point["below_one"] for point in points]
        axis.plot(xs, below, marker=".", color="#2a9d74", label="time with fewer Aggregators than servers")
        axis.axhline(
            found["printed"]["saved"], color="#e0803a", linestyle="--", linewidth=1, label="saved, printed"
        )
        axis.set_xlabel(_LABELS[name])
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.3)
    axes[0].plot(xs_of(curves), [1 - x for x in xs_of(curves)], color="grey", linewidth=0.8, label="1 - use")
    axes[0].plot([found["server_use"]], [found["saved"]], "D", color="black", label="fixed before the run")
    if found["use_with_printed_saving"]:
        axes[0].axvline(found["use_with_printed_saving"], color="#e0803a", linestyle=":", linewidth=1)
    axes[2].set_xscale("symlog", linthresh=1)
    axes[2].set_xlim(-0.2, 600)
    axes[2].set_xticks([0, 1, 10, 60, 360], ["each exit", "1", "10", "60", "360"])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def xs_of(curves: Mapping[str, Any]) -> list[float]:
    """The uses of the first curve."""
    return [point["server_use"] for point in curves["server_use"]]
