"""Draws mean completion times over the price of a change, of a few policies on each trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from flexo_bench.price.cases import OWN, POLLUX, PRICES
from flexo_bench.price.report import PUBLISHED_S, Found, SiaMeans, SiaSet

_POLICIES: Final[Mapping[str, tuple[str, str]]] = {
    "goodput": ("#3b82c4", "o"),
    "goodput-undeclared": ("#2a9d74", "s"),
    "throughput": ("#8e6bbf", "^"),
    "elastic-tiresias": ("#a3795c", "v"),
    "lyra": ("#c06aa0", "D"),
    "tiresias": ("#7a8a2e", "x"),
}
"""Those that are drawn, each with its colour and its mark. All others are slower on these jobs."""
_RIVAL: Final = "#e0803a"
_IN_A_ROW: Final = 3


def draw(found: Found, sia_means: SiaMeans, path: Path) -> None:
    """Write a PNG: a panel for each cluster and trace of `found`, which is not empty."""
    places = sorted(
        {(case.cluster, case.trace) for case in found}, key=lambda each: (each[1] != POLLUX, each)
    )
    rows = -(-len(places) // _IN_A_ROW)
    columns = min(len(places), _IN_A_ROW)
    figure, grid = plt.subplots(rows, columns, figsize=(4.4 * columns + 0.6, 3.6 * rows + 0.5), squeeze=False)
    panels = list(grid.flat)
    for axis, place in zip(panels, places, strict=False):
        _panel(
            axis, {case: out for case, out in found.items() if (case.cluster, case.trace) == place}, sia_means
        )
    for axis in panels[len(places) :]:
        axis.set_visible(False)
    for axis in grid[:, 0]:
        axis.set_ylabel("mean completion time, hours")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=max(1, len(labels)), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / (3.6 * rows + 0.5)))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _panel(axis: Axes, cases: Found, sia_means: SiaMeans) -> None:
    """One cluster and trace: a line for each policy, a mark at Sia's own price, and a line for the rival."""
    sets = {SiaSet.of(case) for case in cases}
    highest = 0.0
    for policy, (colour, mark) in _POLICIES.items():
        known = {place: mean for place, price in enumerate(PRICES) if (mean := _mean_h(cases, policy, price))}
        if known:
            axis.plot(list(known), list(known.values()), marker=mark, color=colour, label=policy)
        own_h = _mean_h(cases, policy, OWN)
        if own_h:
            axis.plot([len(PRICES)], [own_h], marker=mark, color=colour)
        highest = max(highest, own_h, *known.values(), 0.0)
    trace = next(iter(sets)).trace
    rival, rival_h = _rival(trace, sets, sia_means)
    if rival_h:
        axis.axhline(rival_h, color=_RIVAL, linestyle="--", linewidth=1.4)
        axis.text(-0.2, rival_h, rival, color=_RIVAL, fontsize=8, verticalalignment="bottom")
    many = f"{len(sets)} workload{'s' if len(sets) > 1 else ''}"
    axis.set_title(f"{trace}, {next(iter(sets)).cluster} GPUs ({many})", fontsize=10)
    own = [] if trace == POLLUX else ["Sia's"]
    axis.set_xticks(range(len(PRICES) + len(own)), [*PRICES, *own])
    axis.set_xlim(-0.3, len(PRICES) + len(own) - 0.7)
    axis.set_xlabel("seconds without training at each change")
    axis.set_ylim(0, 1.12 * max(highest, rival_h) or 1.0)
    axis.grid(alpha=0.3)


def _mean_h(cases: Found, policy: str, price: str) -> float:
    """Mean completion time in hours; 0: it was not simulated on each of the workloads."""
    times = [out.jct_s for case, out in cases.items() if (case.label, case.price) == (policy, price)]
    whole = len(times) == len({SiaSet.of(case) for case in cases})
    return fmean(times) / 3600 if whole else 0.0


def _rival(trace: str, sets: set[SiaSet], sia_means: SiaMeans) -> tuple[str, float]:
    """A name for the line of the rival, and its mean in hours; 0: it is not known for each workload."""
    if trace == POLLUX:
        return "Pollux, as published, at 30 s", fmean(PUBLISHED_S[each.number] for each in sets) / 3600
    if not sets <= sia_means.keys():
        return "", 0.0
    return "Sia's simulator, at its own price", fmean(sia_means[each] for each in sets) / 3600
