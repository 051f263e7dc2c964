"""The picture of the story: steps a second of each job, and who shared what when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from flexo_demos.sharing.report import DEVICE
from flexo_demos.sharing.steps import Step
from flexo_demos.sharing.story import GUEST, HOSTS, Seen

_COLOURS = {HOSTS[0]: "#1f4e79", HOSTS[1]: "#7fb2dd", GUEST: "#e08a3c"}
_BIN_S = 2.0
_SCENES = ("together", "#f6ead9", "on one device"), ("pause", "#eeeeee", "paused")


def draw(seen: Seen, steps: Mapping[str, Sequence[Step]], path: Path) -> None:
    """Draw the PNG file `path`. This needs no display."""
    began = min(each[0].began for each in steps.values() if each)
    ended = max(each[-1].ended for each in steps.values() if each)
    edges = np.arange(0.0, ended - began + _BIN_S, _BIN_S)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 4.5), layout="constrained", dpi=130)
        axes = figure.subplots()
        stretches = {"together": seen.together, "pause": (seen.paused_at, seen.went_on_at)}
        for name, colour, text in _SCENES:
            first, last = stretches[name]
            if first and last:
                axes.axvspan(first - began, last - began, color=colour, zorder=0)
                axes.text(
                    (first + last) / 2 - began, 1.0, text, transform=axes.get_xaxis_transform(), ha="center"
                )
        for name, each in steps.items():
            counts, _ = np.histogram([step.ended - began for step in each], edges)
            axes.step(edges[:-1], counts / _BIN_S, where="post", color=_COLOURS[name], label=name)
        axes.set_xlabel("seconds")
        axes.set_ylabel("steps a second")
        axes.set_title(f"device: {DEVICE}", fontsize=9, loc="left", pad=18)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.04), ncols=3)
        figure.savefig(path)
