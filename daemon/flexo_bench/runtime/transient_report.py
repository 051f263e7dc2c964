"""The results of part `transient` as a table, and as a picture like Amoeba's figure 8."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexo_bench.runtime.results import Transient
from flexo_bench.runtime.words import COLOURS, RIVALS, WORDS, spread


def table(runs: Sequence[Transient]) -> Iterator[str]:
    """A line for each rival, number of GPUs and interval: medians and ranges of its cycles."""
    if not runs:
        return
    least, step_s = min(runs[0].fixed), runs[0].step_seconds
    yield f"\n{least} workers, and GPUs that come and go; steps sleep {step_s:g} s. Medians (ranges):"
    yield (
        f"{'GPUs':5}{'stay, s':8}{'':28}{'over baseline':>26}{'ideal over it':>15}"
        f"{'of ideal':>26}{'of what they could give':>28}"
    )
    for gpus, interval_s in sorted({(each.gpus, each.interval_s) for each in runs}):
        for rival in RIVALS:
            found = [r for r in runs if (r.gpus, r.interval_s, r.rival) == (gpus, interval_s, rival)]
            if found:
                yield f"{gpus:<5}{interval_s:<8g}{_line(found)}"


def _line(found: Sequence[Transient]) -> str:
    over, ideal = (spread([each.over_baseline for each in found]), _ideal(found))
    ratio, gained = (spread([each.ratio for each in found]), spread([each.gained for each in found], 2))
    return f"{WORDS[found[0].rival]:28}{over:>26}{ideal:>15.3f}{ratio:>26}{gained:>28}   n={len(found)}"


def _ideal(runs: Sequence[Transient]) -> float:
    return statistics.median(each.ideal_over_baseline for each in runs)


def draw(runs: Sequence[Transient], path: Path) -> None:
    """Draw throughput over intervals, with a panel for each number of GPUs, and a dot for each cycle."""
    numbers = sorted({each.gpus for each in runs})
    figure = Figure(figsize=(3 + 2.6 * len(numbers), 3.6), layout="constrained", dpi=130)
    panels = figure.subplots(1, len(numbers), sharey=True, squeeze=False)[0]
    for axes, gpus in zip(panels, numbers, strict=True):
        _draw_panel(axes, [each for each in runs if each.gpus == gpus])
        axes.set_title("1 GPU comes and goes" if gpus == 1 else f"{gpus} GPUs come and go", fontsize=10)
        axes.set_xlabel("they stay, seconds")
    panels[0].set_ylabel("throughput over Baseline")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path)


def _draw_panel(axes: Axes, runs: Sequence[Transient]) -> None:
    axes.axhline(1.0, color="#cccccc", label="Baseline")
    for rival in RIVALS:
        own = [each for each in runs if each.rival == rival]
        if not own:
            continue
        intervals = sorted({each.interval_s for each in own})
        at = [[each for each in own if each.interval_s == interval_s] for interval_s in intervals]
        colour, words = COLOURS[rival], WORDS[rival]
        axes.plot(intervals, [_ideal(each) for each in at], "--", color=colour, label=f"Ideal of {words}")
        axes.plot([r.interval_s for r in own], [r.over_baseline for r in own], "o", color=colour, alpha=0.5)
        medians = [statistics.median(run.over_baseline for run in each) for each in at]
        axes.plot(intervals, medians, color=colour, label=words)
    intervals = sorted({each.interval_s for each in runs})
    axes.set_xticks(intervals, [f"{each:g}" for each in intervals])
    axes.grid(alpha=0.25)
