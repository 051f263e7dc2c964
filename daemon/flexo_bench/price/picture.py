"""Draws mean completion times of a few policies: over the price of a change, and at Sia's own price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

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
_FEWEST: Final = 3
"""Prices that a place needs for lines of its own. A place with fewer is drawn as bars beside others."""
_COLUMNS: Final = 3
"""The most panels beside each other."""
_BARRED: Final = ("goodput", "goodput-undeclared")
_BAR: Final = 0.16
_FADED: Final = 0.5
"""Opacity of bars at the lowest price, which stand beside those at the highest."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The simulations on one cluster and trace."""

    cluster: str
    trace: str
    cases: Found
    sets: frozenset[SiaSet]
    rival_h: float
    """Mean of the rival in hours; 0: it is not known for each workload."""

    @property
    def many(self) -> str:
        return f"{len(self.sets)} workload{'s' if len(self.sets) > 1 else ''}"

    def mean_h(self, policy: str, price: str) -> float:
        """Mean completion time in hours; 0: it was not simulated on each of the workloads."""
        times = [out.jct_s for case, out in self.cases.items() if (case.label, case.price) == (policy, price)]
        return fmean(times) / 3600 if len(times) == len(self.sets) else 0.0

    def prices(self) -> int:
        """Number of PRICES at which some policy was simulated on each workload."""
        return sum(any(self.mean_h(policy, price) for policy in _POLICIES) for price in PRICES)


def draw(found: Found, sia_means: SiaMeans, path: Path) -> None:
    """Write a PNG of `found`, which is not empty: a panel of lines each, or one of bars for some."""
    names = sorted({(case.trace, case.cluster) for case in found}, key=lambda each: (each[0] != POLLUX, each))
    places = [_place(found, sia_means, trace, cluster) for trace, cluster in names]
    lined = [place for place in places if place.prices() >= _FEWEST]
    barred = [place for place in places if place.prices() < _FEWEST]
    count = len(lined) + bool(barred)
    rows = -(-count // _COLUMNS)
    columns = -(-count // rows)
    figure = Figure(figsize=(4.6 * columns, 4.2 * rows + 0.7), layout="constrained", dpi=110)
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes, place in zip(panels, lined, strict=False):
        _lines(axes, place)
    if barred:
        _bars(panels[len(lined)], barred)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count:columns]:
        axes.set_ylabel("mean completion time, hours")
    _legend(figure, panels[:count])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _place(found: Found, sia_means: SiaMeans, trace: str, cluster: str) -> _Place:
    cases = {case: out for case, out in found.items() if (case.trace, case.cluster) == (trace, cluster)}
    sets = frozenset(SiaSet.of(case) for case in cases)
    rival_h = 0.0
    if trace == POLLUX:
        rival_h = fmean(PUBLISHED_S[each.number] for each in sets) / 3600
    elif sets <= sia_means.keys():
        rival_h = fmean(sia_means[each] for each in sets) / 3600
    return _Place(cluster, trace, cases, sets, rival_h)


def _lines(axes: Axes, place: _Place) -> None:
    """Draw a line for each policy over the price, and one for the rival."""
    own = any(place.mean_h(policy, OWN) for policy in _POLICIES)
    ticks = [*PRICES, *(["Sia's"] if own else [])]
    for policy, (colour, mark) in _POLICIES.items():
        means = [place.mean_h(policy, price) for price in (*PRICES, *([OWN] if own else []))]
        known = {at: mean for at, mean in enumerate(means) if mean}
        if known:
            axes.plot(list(known), list(known.values()), marker=mark, color=colour, label=policy)
    if place.rival_h:
        rival = (
            "Pollux, as published, at 30 s" if place.trace == POLLUX else "Sia's simulator, at its own price"
        )
        axes.axhline(place.rival_h, color=_RIVAL, linestyle="--", linewidth=1.4, label=rival)
    axes.set_title(f"{place.trace}, {place.cluster} GPUs ({place.many})", fontsize=11)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlabel("seconds without training at each change")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0), numticks=99))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)


def _bars(axes: Axes, places: Sequence[_Place]) -> None:
    """Draw bars for each place at the lowest and the highest price, and the mean of Sia's simulator."""
    priced = [price for price in (*PRICES, OWN) if any(place.mean_h("goodput", price) for place in places)]
    ends = tuple(dict.fromkeys(priced[:1] + priced[-1:]))
    bars = [(policy, price) for policy in _BARRED for price in ends]
    for nth, (policy, price) in enumerate(bars):
        heights = [place.mean_h(policy, price) for place in places]
        at = [number + (nth - (len(bars) - 1) / 2) * _BAR for number in range(len(places))]
        said = "Sia's own price" if price == OWN else f"{price} s"
        opacity = 1.0 if price == ends[-1] else _FADED
        axes.bar(at, heights, _BAR, color=_POLICIES[policy][0], alpha=opacity, label=f"{policy}, {said}")
    rivals = {number: place.rival_h for number, place in enumerate(places) if place.rival_h}
    axes.hlines(
        list(rivals.values()), [number - 0.4 for number in rivals], [number + 0.4 for number in rivals],
        color=_RIVAL, linestyle="--", linewidth=1.8, label="Sia's simulator, at its own price",
    )  # fmt: skip
    labels = [f"{place.trace},\n{place.cluster} GPUs\n({place.many})" for place in places]
    axes.set_xticks(range(len(places)), labels)
    axes.set_title("Traces of Sia", fontsize=11)
    axes.grid(axis="y", alpha=0.3)


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    shown: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    figure.legend(
        list(shown.values()), list(shown), loc="outside lower center", ncols=4, fontsize=9, frameon=False
    )
