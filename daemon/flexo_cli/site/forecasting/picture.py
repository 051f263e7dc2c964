"""Draws history, forecast and forecast interval as a picture."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from flexo.loaning.forecast_interval import ForecastInterval
from flexo.loaning.history import Floats
from flexo_cli.site.forecasting.source import Past

_SHOWN: Final = 3.0
"""Length of the history that is drawn, in lengths of the forecast; at least two days."""
_PAST, _TO_COME = "#4a5560", "#3b82c4"
_STYLE: Final = {
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "flexo",
}


def write(past: Past, band: ForecastInterval, path: Path) -> None:
    """Draw the picture into `path`, whose name ends in one of asked.PICTURES. Raises OSError."""
    history = past.history
    shown = max(2 * history.seasons.bins_a_day, math.ceil(_SHOWN * len(band.times)))
    values = history.values[-shown:]
    numbers = history.last + 1 - len(values) + np.arange(len(values))
    before, when = _dates(numbers * history.seasons.step_s), _dates(band.times)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained", dpi=130)
        axes = figure.subplots()
        edges = f"band, {100 * (1 - band.quantile):.3g}% to {100 * band.quantile:.3g}%"
        axes.fill_between(when, band.lower, band.upper, color=_TO_COME, alpha=0.22, linewidth=0, label=edges)
        axes.plot(before, values, color=_PAST, linewidth=1.1, label="demand")
        axes.plot(when, band.expected, color=_TO_COME, linewidth=1.8, label="expected")
        axes.axvline(float(when[0]), color=_PAST, linewidth=0.8, linestyle=(0, (4, 3)))
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.set_xlim(before[0], when[-1])
        axes.set_ylim(0, None)
        axes.set_ylabel("servers")
        axes.grid(alpha=0.2, linewidth=0.5)
        title = f"Demand of the inference cluster, {band.method} forecast"
        axes.set_title(
            f"{title}\n{past.source}" + (f"; {band.note}" if band.note else ""), loc="left", fontsize=10
        )
        axes.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=9)
        figure.savefig(path)


def _dates(times: Floats) -> Floats:
    """Convert times to matplotlib's days, in local time, as the commands print it."""
    return np.array([date2num(datetime.fromtimestamp(float(at))) for at in times])
