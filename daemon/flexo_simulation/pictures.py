"""Pictures of simulations as SVG inside a page: distributions, GPUs over time, a bar for each job.

A picture is drawn in the colour of the text around it, without a background, so that it can be read on a
light page and on a dark one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from numpy.typing import NDArray

from flexo_simulation.course import Stretch, course_of, stretches_of
from flexo_simulation.loan_story import LoanStory, means
from flexo_simulation.records import JobRecord

_INK: Final = "#010203"
"""A placeholder for the colour of the text around; no picture has this colour otherwise."""
_COLOURS: Final = ("#3b82c4", "#e0803a", "#2a9d74", "#d1495b", "#8e6bbf", "#a3795c", "#c06aa0", "#7a8a2e")
_DASHES: Final = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_USED, _IDLE, _WANTED = "#3b82c4", "#9aa3ad", "#e0803a"
_SERVER_KINDS: Final = (
    ("in use by inference", "#8e6bbf"),
    ("lent, in use by jobs (as whole servers)", _USED),
    ("lent, idle", "#b9d3ec"),
)
_FEWER, _AS_ASKED, _MORE = "#e0a03a", "#3b82c4", "#2a9d74"
_POINTS: Final = 400
_SAME: Final = 0.02
"""Curves that differ by no more than this part, everywhere, are drawn as one."""
_STRETCHES: Final = 500
_BARS: Final = 160
"""The most jobs that have a bar; of more jobs, this number is chosen evenly."""
_STYLE: Final = {
    "font.size": 10,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "flexo",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}
_TICKS: Final = (
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (86_400, "1 day"),
    (864_000, "10 days"),
    (8_640_000, "100 days"),
)
_NO_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_UNITS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def distributions(curves: Sequence[tuple[str, Sequence[float]]], what: str, parts_of: str = "jobs") -> str:
    """A picture of distributions: the part of `parts_of` that took at most so long.

    `what`: "completion time" or the like.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.subplots()
        shares = np.linspace(0, 1, _POINTS)
        for number, (label, points) in enumerate(_together(curves, shares)):
            axes.plot(
                points,
                100 * shares[: len(points)],
                color=_COLOURS[number % len(_COLOURS)],
                linestyle=_DASHES[number // len(_COLOURS) % len(_DASHES)],
                linewidth=1.8,
                label=label,
                clip_on=False,  # where nearly all values are 0, the curve lies on the edge
                zorder=3,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([length for length, _ in _TICKS]))
        axes.xaxis.set_major_formatter(FixedFormatter([text for _, text in _TICKS]))
        axes.xaxis.set_minor_locator(NullLocator())
        longest = max((max(values, default=1.0) for _, values in curves), default=1.0)
        axes.set_xlim(1.0, max(60.0, 1.2 * longest))
        axes.set_xlabel(f"{what} (scale: logarithmic; at least 1 s)")
        axes.set_ylabel(f"% of {parts_of}, at most")
        axes.set_ylim(0, 101)
        axes.grid(alpha=0.25, color=_INK, linewidth=0.5)
        axes.legend(fontsize=9)
        return _svg(figure, f"Distribution of {what}")


def _together(
    curves: Sequence[tuple[str, Sequence[float]]], shares: NDArray[np.float64]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """The points of each curve, at these `shares`. Curves that cannot be told apart are one, with all names:
    the last would hide the others."""
    drawn: list[tuple[str, NDArray[np.float64]]] = []
    for label, values in curves:
        points = np.quantile(np.maximum(values, 1.0), shares) if len(values) else np.array([1.0, 1.0])
        for number, (names, others) in enumerate(drawn):
            if points.shape == others.shape and np.allclose(points, others, rtol=_SAME):
                drawn[number] = f"{names};\n{label}", others
                break
        else:
            drawn.append((label, points))
    yield from drawn


def gpus_over_time(
    records: Sequence[JobRecord],
    gpus: float,
    span: tuple[float, float],
    since: str = "the first submission",
) -> str:
    """A picture of the GPUs in use, idle, and wanted by waiting jobs, over `span`, which begins with `since`.

    Both seats of a shared GPU count, so that more can be in use than there are.
    """
    course = course_of(records, _STRETCHES, span)
    size, unit = _unit(course.edges[-1] - course.edges[0])
    times = (course.edges - course.edges[0]) / size
    used = np.append(course.used, course.used[-1])
    wanted = np.append(course.wanted, course.wanted[-1])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11.2, 3.0), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(times, 0, used, step="post", color=_USED, alpha=0.85, linewidth=0, label="in use")
        taken = np.minimum(used, gpus)
        axes.fill_between(times, taken, gpus, step="post", color=_IDLE, alpha=0.35, linewidth=0, label="idle")
        axes.step(times, wanted, where="post", color=_WANTED, linewidth=1.4, label="wanted by waiting jobs")
        top = max(gpus * 1.15, float(used.max()) * 1.05, min(float(wanted.max()) * 1.05, 3.0 * gpus))
        axes.set(xlim=(0, times[-1]), ylim=(0, top), xlabel=f"{unit} since {since}", ylabel="GPUs")
        axes.axhline(gpus, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
        if wanted.max() > top:
            axes.annotate(
                f"up to {wanted.max():,.0f} wanted",
                (0.995, 0.97),
                xycoords="axes fraction",
                ha="right",
                va="top",
                fontsize=9,
            )
        axes.legend(ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0))
        return _svg(figure, "GPUs in use, idle, and wanted by waiting jobs over time")


def servers_over_time(story: LoanStory, span: tuple[float, float]) -> str:
    """A picture of an inference cluster's servers: in use by itself, lent and in use by jobs, lent and idle,
    idle."""
    begin, end = span
    size, unit = _unit(end - begin)
    edges = np.linspace(begin, end, _STRETCHES + 1)
    used, away, held = (means(story, kind, edges) for kind in ("used", "away", "held"))
    times = (edges - begin) / size
    levels = (used, used + held / story.gpus_each, used + away)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11.2, 3.0), layout="constrained")
        axes = figure.subplots()
        below = np.zeros(len(times))
        for level, (label, colour) in zip(levels, _SERVER_KINDS, strict=True):
            top = np.append(level, level[-1])
            axes.fill_between(times, below, top, step="post", color=colour, alpha=0.85, lw=0, label=label)
            below = top
        axes.axhline(story.servers, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set(xlim=(0, times[-1]), ylim=(0, story.servers * 1.05))
        axes.set(xlabel=f"{unit} since the first submission", ylabel="servers")
        axes.legend(ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0))
        return _svg(figure, "Inference servers in use, lent, and idle over time")


def bars(records: Sequence[JobRecord], span: tuple[float, float]) -> str:
    """A picture of when each job waited and ran, and whether with more or fewer workers than it asked for."""
    begin, end = span
    shown = thinned(records)
    size, unit = _unit(end - begin)
    with mpl.rc_context(_STYLE):
        height = 1.3 + 0.028 * max(40, len(shown))
        figure = Figure(figsize=(11.2, height), layout="constrained", dpi=110)
        axes = figure.subplots()
        kinds: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {
            colour: [] for colour in (_IDLE, _FEWER, _AS_ASKED, _MORE)
        }
        for row, record in enumerate(shown):
            for each in stretches_of(record, end):
                line = ((each.begin - begin) / size, float(row)), ((each.end - begin) / size, float(row))
                kinds[_colour(each, record.job.requested_workers)].append(line)
        for (colour, lines), (label, width) in zip(kinds.items(), _BAR_KINDS, strict=True):
            axes.add_collection(
                LineCollection(lines, colors=colour, linewidths=width, label=label, rasterized=True)
            )
        axes.set(xlim=(0, (end - begin) / size), ylim=(len(shown) + 0.5, -1.5))
        axes.set(
            xlabel=f"{unit} since the first submission", ylabel="jobs, in order of submission", yticks=[]
        )
        axes.legend(ncols=4, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0))
        return _svg(figure, "When each job waited and ran")


_BAR_KINDS: Final = (
    ("waits", 0.8),
    ("runs with fewer workers than it asked for", 2.2),
    ("with as many", 2.2),
    ("with more", 2.2),
)


def thinned(records: Sequence[JobRecord]) -> Sequence[JobRecord]:
    """The records that have a bar: all, or evenly chosen ones."""
    if len(records) <= _BARS:
        return records
    places = np.linspace(0, len(records) - 1, _BARS).round().astype(int)
    return [records[int(place)] for place in places]


def _colour(stretch: Stretch, asked: int) -> str:
    if not stretch.workers:
        return _IDLE
    if stretch.workers == asked:
        return _AS_ASKED
    return _MORE if stretch.workers > asked else _FEWER


def _unit(seconds: float) -> tuple[float, str]:
    """The largest unit of which there are at least three in `seconds`."""
    return next((unit for unit in _UNITS if seconds >= 3 * unit[0]), _UNITS[-1])


def _svg(figure: Figure, title: str) -> str:
    """The picture without its XML head, with a name for readers who cannot see it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}" class="picture"', 1)
