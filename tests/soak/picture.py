"""The soak's picture: what was sampled, and the line that was fitted to it."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soak.report import MEASURES, Measure, Soak

_INK, _EARLY, _LINE = "#1f4e79", "#b9c6d2", "#e08a3c"

_LEAST_SPAN = 2.0
"""Of an axis: what does not change shall not look as if it did."""


def draw(soak: Soak, path: Path) -> None:
    """Write the PNG. Needs no display."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 9), layout="constrained", dpi=130)
        panels = figure.subplots(len(MEASURES) + 1, 1, sharex=True)
        began = min((sample.at for sample in (*soak.warm_up, *soak.samples)), default=0.0)
        for axes, measure in zip(panels[:-1], MEASURES, strict=True):
            _draw(axes, soak, measure, began)
        _draw_store(panels[-1], soak, began)
        panels[-1].set_xlabel("minutes since the first quiet point")
        figure.savefig(path)


def _draw(axes: Axes, soak: Soak, measure: Measure, began: float) -> None:
    for samples, colour in ((soak.warm_up, _EARLY), (soak.samples, _INK)):
        at = [(sample.at - began) / 60 for sample in samples]
        axes.plot(at, [measure.of(sample) for sample in samples], "o", color=colour, markersize=4)
    slope = soak.slopes[measure.name]
    title = f"{measure.name}: not enough samples"
    if slope.per_hour is not None and slope.mean is not None:
        at = np.array([sample.at for sample in soak.samples])
        growth = slope.per_hour * (slope.mean / 100 if measure.relative else 1.0)
        line = slope.mean + growth * (at - at.mean()) / 3600
        axes.plot((at - began) / 60, line, color=_LINE)
        title = (
            f"{measure.name}: {slope.per_hour:+.2f} {measure.unit}, upper 95% bound {slope.upper95:+.2f}, "
            f"allowed {measure.bound:g}: {'flat' if slope.flat else 'NOT SHOWN TO BE FLAT'}"
        )
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_ylabel("fixed work" if measure.relative else measure.name)
    low, high = axes.get_ylim()
    if high - low < _LEAST_SPAN:
        axes.set_ylim((low + high - _LEAST_SPAN) / 2, (low + high + _LEAST_SPAN) / 2)


def _draw_store(axes: Axes, soak: Soak, began: float) -> None:
    samples = (*soak.warm_up, *soak.samples)
    at = [(sample.at - began) / 60 for sample in samples]
    axes.plot(at, [sample.event_store_bytes / 2**20 for sample in samples], "o-", color=_INK, markersize=3)
    axes.axhline(soak.event_store_budget / 2**20, color=_LINE)
    axes.set_title("event store", loc="left", fontsize=9)
    axes.set_ylabel("MiB")
    axes.set_ylim(bottom=0)
