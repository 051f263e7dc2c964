"""The benchmark's results as JSON, as a table for people, and as a picture."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexo_bench import connecting
from flexo_bench.runtime import transient_report
from flexo_bench.runtime.results import (
    FLEXOS,
    MODELS,
    Figures,
    Resize,
    Steady,
    median,
)
from flexo_bench.runtime.words import COLOURS, RIVALS, WORDS, spread

_TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
"""Ticks of the axis of pauses, in seconds."""


def as_json(figures: Figures) -> dict[str, Any]:
    """The results as JSON: ratios first, then every sample."""
    return {name: finite(value) for name, value in (
        {
            **{goal.name: goal.value for goal in figures.goals()},
            **figures.figures_of_core_torch(),
            "goals": {goal.name: f"{goal.wanted}: {goal.verdict}" for goal in figures.goals()},
            "command": figures.command,
            "machine": figures.machine,
            "seconds": round(figures.seconds, 1),
            "definitions": {
                "pause_s": "of the slowest worker that stays: from the end of its last mini-batch before the "
                "change to the end of the first new one after it, less one mini-batch at the new size",
                "around_s": "what three mini-batches before and three after the change took too long",
                "first_useful_s": "from the request to the end of the first mini-batch at the new size",
                "grant_to_useful_s": "the same from the leader's grant",
                "out ratios, in ratio": "medians, toy model; less is better",
                "transient_ratio_vs_ideal": "samples trained / samples of free resizing, if the GPUs are "
                "away for as long as they stay",
                "core_torch.*": "flexo on the core on torch.distributed; without a prefix: on Horovod's own",
                "out_pause_vs_mini_batch_and_two_broadcasts": "the pause as above / (one mini-batch at the "
                "new size + two broadcasts of the parameters on the same number of ranks)",
                "connect_at_N": "from the word until the last of N ranks, all on this machine, has built the "
                "next communicator; extrapolated: if it goes on growing as between the last two",
            },
            "resizes": [asdict(each) for each in figures.resizes],
            "steady": [asdict(each) for each in figures.steady],
            "transient": [
                {**asdict(each), "ratio": each.ratio, "gained": each.gained,
                 "over_baseline": each.over_baseline, "ideal_over_baseline": each.ideal_over_baseline}
                for each in figures.transient
            ],
            "core_torch.connecting": asdict(figures.connecting) if figures.connecting else None,
            "rendezvous": figures.rendezvous.samples if figures.rendezvous else None,
            "leader_lookup": figures.leader_lookup.samples if figures.leader_lookup else None,
        }
    ).items()}  # fmt: skip


def finite(value: Any) -> Any:
    """`value` with None for each number that is not finite, because JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def write(figures: Figures, path: Path) -> None:
    """Write the JSON, and the picture beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(figures), indent=1) + "\n")
    if figures.resizes:
        draw(figures.resizes, path.with_suffix(".png"))
    if len({each.interval_s for each in figures.transient}) > 1:
        transient_report.draw(figures.transient, path.with_name(f"{path.stem}-transient.png"))


def table(figures: Figures) -> Iterator[str]:
    """The results as lines for people."""
    yield from _pauses(figures)
    yield from _steady(figures)
    yield from transient_report.table(figures.transient)
    if figures.connecting:
        yield from ("", "the core on torch.distributed connects n ranks of this machine; ms")
        yield from connecting.lines(figures.connecting)
    for beside in (figures.rendezvous, figures.leader_lookup):
        yield from ("", *beside.lines) if beside else ()
    yield ""
    for goal in figures.goals():
        shown = "-" if goal.value is None else f"{goal.value:.4f}"
        yield f"{goal.name:60} {shown:>8}   to reach: {goal.wanted:13} {goal.verdict}"


def _pauses(figures: Figures) -> Iterator[str]:
    if not figures.resizes:
        return
    yield f"\n{'medians (ranges), seconds':42}{'pause of those who stay':>28}{'request to useful':>28}"
    for model in dict.fromkeys(each.model for each in figures.resizes):
        for out in (True, False):
            for rival in RIVALS:
                found = [r for r in figures.resizes if (r.model, r.rival, r.cost.out) == (model, rival, out)]
                if found:
                    yield _pause_line(model, rival, out, found)
    yield from _newcomers(figures)


def _pause_line(model: str, rival: str, out: bool, found: Sequence[Resize]) -> str:
    way = f"{found[0].cost.before} to {found[0].cost.after}"
    pauses = spread([each.cost.pause_s for each in found])
    useful = spread([each.cost.first_useful_s for each in found])
    return f"{model:6}{way:8}{WORDS[rival]:28}{pauses:>28}{useful:>28}   n={len(found)}"


def _newcomers(figures: Figures) -> Iterator[str]:
    """Lines on newcomers that warm up in the background, which only flexo's do."""
    for rival in FLEXOS:
        grown = [each for each in figures.resizes if each.rival == rival and each.cost.out]
        useful = [each.grant_to_useful_s for each in grown if each.grant_to_useful_s is not None]
        if useful:
            yield f"{WORDS[rival]}: from grant to first useful mini-batch {spread(useful)} s"
        for model in dict.fromkeys(each.model for each in grown):
            of_model = (each.warming_slows for each in grown if each.model == model)
            slows = [share for share in of_model if share is not None]
            if slows:
                longer = _percent(slows)
                yield f"{WORDS[rival]}, {model}: while a newcomer warms up, mini-batches take {longer} longer"


def _percent(shares: Sequence[float]) -> str:
    middle = median(share for share in shares if math.isfinite(share))
    return "-" if middle is None else f"{middle:.0%}"


def _steady(figures: Figures) -> Iterator[str]:
    if figures.steady:
        yield "\nsamples/s at a fixed size, medians (ranges)"
    for model in MODELS:
        for workers in sorted({run.workers for run in figures.steady}):
            for rival in RIVALS:
                yield from _steady_line(figures.steady, rival, model, workers)


def _steady_line(runs: Sequence[Steady], rival: str, model: str, workers: int) -> Iterator[str]:
    found = [run for run in runs if (run.rival, run.model, run.workers) == (rival, model, workers)]
    if rates := [run.samples_per_second for run in found]:
        yield f"{model:6}{workers} workers  {WORDS[rival]:28}{spread(rates, 1):>32}   n={len(rates)}"


def draw(resizes: Sequence[Resize], path: Path) -> None:
    """Draw every pause as a dot, on a logarithmic scale: growing above, shrinking below."""
    models = list(dict.fromkeys(each.model for each in resizes))
    figure = Figure(figsize=(8, 5), layout="constrained", dpi=130)
    for axes, out in zip(figure.subplots(2, 1, sharex=True), (True, False), strict=True):
        _draw_way(axes, [each for each in resizes if each.cost.out is out], models)
        axes.set_title("one worker more" if out else "one worker less", loc="left", fontsize=10)
    axes.set_xlabel("pause of the workers that stay, seconds; | median")
    figure.savefig(path)


def _draw_way(axes: Axes, resizes: Sequence[Resize], models: Sequence[str]) -> None:
    labels: list[str] = []
    for rival in RIVALS:
        for model in models:
            pauses = [max(r.cost.pause_s, _TICKS[0]) for r in resizes if (r.rival, r.model) == (rival, model)]
            if pauses:
                row = -len(labels)
                axes.plot(pauses, [row] * len(pauses), "o", color=COLOURS[rival], alpha=0.6)
                axes.plot(statistics.median(pauses), row, "|", color=COLOURS[rival], markersize=22)
                labels.append(f"{WORDS[rival]}, {model}")
    axes.set_yticks([-row for row in range(len(labels))], labels)
    axes.set_ylim(-len(labels) + 0.4, 0.6)
    axes.set_xscale("log")
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlim(_TICKS[0] * 0.8, _TICKS[-1] * 1.2)
    axes.grid(axis="x", alpha=0.25)
