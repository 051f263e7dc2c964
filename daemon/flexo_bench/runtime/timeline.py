"""The picture of docs/explanation/resize.md: one resize out and one in, from a real run's logs and trace.

python -m flexo_bench.runtime.timeline --out docs/images/resize.png
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flexo_bench.runtime import traces
from flexo_bench.runtime.resizing import BIG, SMALL
from flexo_bench.runtime.results import CORE_TORCH
from flexo_bench.runtime.rivals import (
    CORES,
    Flexo,
    Training,
    interrupt_on_sigterm,
    running,
    wait_until_settled,
)
from flexo_bench.runtime.traces import Traced
from flexo_bench.runtime.worklog import Batch, Moment, WorkLog, by_worker
from flexo_lab import LabSpec, bring_up

SETTLED = 40
"""Mini-batches of every worker before and after each resize, so that the picture shows both sides."""
_STARTING, _BUILDING, _WAITING = "starts, imports", "builds the model, warms up", "ready, waits"
_TRAINING, _SWITCHING, _PREPARING = (
    "trains (a box is a mini-batch)",
    "switches",
    "prepares the next communicator",
)
_COLOURS = {
    _STARTING: "#d9d9d9", _BUILDING: "#f2c279", _WAITING: "#fff2cc",
    _TRAINING: "#7fb2dd", _SWITCHING: "#c0392b", _PREPARING: "#3d8b40",
}  # fmt: skip
_INK = "#333333"
_LANE = 0.62
_LARGE, _SMALL = 14, 12
"""Sizes of letters that can be read at half the picture's size."""
_BEFORE_S, _AFTER_S = 0.5, 0.7
"""Both strips begin and end so many seconds before and after the leader's `go`."""


@dataclass(frozen=True, slots=True)
class Span:
    """One activity of a worker. Times are seconds since the epoch."""

    what: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Lane:
    """All activities of one worker."""

    name: str
    spans: tuple[Span, ...]
    preparing: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """One run: the workers' activities, and the events of the leader's trace."""

    lanes: tuple[Lane, ...]
    told: tuple[Traced, ...]
    grown_at: float
    """Time of the leader's `go` for the bigger generation."""
    shrunk_at: float


def story(folder: Path) -> Story:
    """Join logs and trace of the run in `folder`: SMALL workers, then BIG, then SMALL again.

    Raises ValueError if the trace has fewer than three generations.
    """
    log, told = WorkLog(folder / "logs").read(), traces.read(folder)
    gos = [each for each in told if each.event == "go"]
    if len(gos) < 3:
        raise ValueError(f"{folder} tells of {len(gos)} generations; the picture needs three")
    batches, names = by_worker(log.batches), _names(log, told)
    lanes = [
        Lane(name, tuple(_spans(pid, log.moments, batches.get(pid, []), told, name)), _preparing(name, told))
        for pid, name in names.items()
    ]
    lanes.sort(key=lambda lane: (min(span.start for span in lane.spans) > gos[0].at, lane.name))
    return Story(tuple(lanes), tuple(told), gos[1].at, gos[2].at)


def _names(log: WorkLog, told: Sequence[Traced]) -> dict[int, str]:
    """Per process: the leader's name for its worker.

    The process that logs the first step of a rank in a generation is the worker that entered with that rank.
    """
    names: dict[int, str] = {}
    gos = [(each.fields["generation"], each.at) for each in told if each.event == "go"]
    until = [at for _, at in gos[1:]] + [float("inf")]
    for (generation, since), end in zip(gos, until, strict=True):
        entered = [e.fields for e in told if e.event == "entered" and e.fields["generation"] == generation]
        ranks = {fields["rank"]: str(fields["worker"]) for fields in entered}
        first: dict[int, Batch] = {}
        for batch in sorted(log.batches, key=lambda each: each.at):
            if since < batch.at < end and batch.size == len(ranks):
                first.setdefault(batch.rank, batch)
        names |= {batch.worker: ranks[rank] for rank, batch in first.items() if rank in ranks}
    return names


def _spans(
    pid: int, moments: Sequence[Moment], batches: Sequence[Batch], told: Sequence[Traced], name: str
) -> Iterator[Span]:
    own = {moment.event: moment.at for moment in reversed(moments) if moment.worker == pid}
    enters = sorted(moment.at for moment in moments if (moment.worker, moment.event) == (pid, "enter"))
    ready = next((each.at for each in told if each.event == "ready" and each.fields["worker"] == name), None)
    warm = ready if ready is not None and ready > own["imported"] else own["built"]
    yield Span(_STARTING, own["started"], own["imported"])
    yield Span(_BUILDING, own["imported"], warm)
    yield Span(_WAITING, warm, enters[0])
    edges = sorted([(at, "enter") for at in enters] + [(batch.at, "batch") for batch in batches])
    for (start, _), (end, what) in pairwise(edges):
        yield Span(_SWITCHING if what == "enter" else _TRAINING, start, end)


def _preparing(name: str, told: Sequence[Traced]) -> tuple[Span, ...]:
    begun = {each.fields["generation"]: each.at for each in told if each.event == "prepare"}
    return tuple(
        Span(_PREPARING, begun[each.fields["generation"]], each.at)
        for each in told
        if each.event == "prepared" and each.fields["worker"] == name
    )


def draw(found: Story, path: Path) -> None:
    """Draw two strips of one scale around the switches: one worker more, and one worker less."""
    figure = Figure(figsize=(9, 6.6), layout="constrained", dpi=130)
    out, back = figure.subplots(2, 1, sharex=True)
    _strip(out, found, found.grown_at)
    out.set_title("One worker more", loc="left", fontsize=_LARGE)
    _strip(back, found, found.shrunk_at)
    back.set_title("One worker less", loc="left", fontsize=_LARGE)
    back.set_xlabel("seconds since the leader's go", fontsize=_LARGE)
    handles = [Patch(color=_COLOURS[what], label=what) for what in _drawn(found)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=_LARGE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _drawn(found: Story) -> tuple[str, ...]:
    """The activities that the strips show, in the order of their colours."""
    windows = [(zero - _BEFORE_S, zero + _AFTER_S) for zero in (found.grown_at, found.shrunk_at)]
    spans = [span for lane in found.lanes for span in (*lane.spans, *lane.preparing)]
    seen = {span.what for span in spans for start, end in windows if span.start < end and span.end > start}
    return tuple(what for what in _COLOURS if what in seen)


def _strip(axes: Axes, found: Story, zero: float) -> None:
    start, end = zero - _BEFORE_S, zero + _AFTER_S
    lanes = [lane for lane in found.lanes if any(s.start < end and s.end > start for s in lane.spans)]
    axes.set_xlim(-_BEFORE_S, _AFTER_S)
    axes.set_ylim(-len(lanes) + 0.2, 1.5)
    for row, lane in enumerate(lanes):
        for span in lane.spans:
            _bar(axes, span, -row, _LANE, zero)
        for span in lane.preparing:
            _bar(axes, span, -row - _LANE / 2, _LANE / 4, zero)
        _tell_of_the_start(axes, lane, -row, zero)
    axes.set_yticks([-row for row in range(len(lanes))], [f"worker {lane.name[1:]}" for lane in lanes])
    axes.tick_params(labelsize=_LARGE)
    axes.spines[["top", "right"]].set_visible(False)
    _mark(axes, found.told, zero)
    _call_the_pause_out(axes, lanes, zero)


def _bar(axes: Axes, span: Span, middle: float, height: float, zero: float) -> None:
    axes.barh(
        middle, span.end - span.start, height, left=span.start - zero,
        color=_COLOURS[span.what], edgecolor="white", linewidth=0.8,
    )  # fmt: skip


def _tell_of_the_start(axes: Axes, lane: Lane, middle: float, zero: float) -> None:
    """Write under the bar of a worker that is still building how long ago it was started."""
    began = min(span.start for span in lane.spans)
    built = max((span.end for span in lane.spans if span.what == _BUILDING), default=began)
    if began < zero - _BEFORE_S < built:
        text, under = f"started {zero - began:.1f} s before go", middle - _LANE / 2 - 0.1
        axes.text(-_BEFORE_S, under, f" {text}", fontsize=_SMALL, color=_INK, va="top")


def _call_the_pause_out(axes: Axes, lanes: Sequence[Lane], zero: float) -> None:
    """Name the longest of the workers' first switches after `zero`, and its length."""
    firsts = [(row, _switch_after(lane, zero)) for row, lane in enumerate(lanes)]
    row, pause = max(
        ((row, span) for row, span in firsts if span is not None),
        key=lambda each: each[1].end - each[1].start,
    )
    axes.annotate(
        f"longest pause: {pause.end - pause.start:.2f} s",
        xy=((pause.start + pause.end) / 2 - zero, _LANE / 2 - row),
        xytext=(_AFTER_S, 1.0), ha="right", va="center",
        fontsize=_LARGE, fontweight="bold", color=_COLOURS[_SWITCHING],
        arrowprops={"arrowstyle": "->", "color": _COLOURS[_SWITCHING], "linewidth": 1.6},
    )  # fmt: skip


def _switch_after(lane: Lane, zero: float) -> Span | None:
    """The first switch of a worker that trains before and after; None: it joins or leaves."""
    return next((span for span in lane.spans if span.what == _SWITCHING and span.end > zero), None)


def _mark(axes: Axes, told: Sequence[Traced], zero: float) -> None:
    """Draw a line for the leader's `prepare` and for its `go`, whose labels stand on different sides."""
    go = next(each for each in told if each.event == "go" and each.at == zero)
    prepare = max((each.at for each in told if each.event == "prepare" and each.at < go.at), default=go.at)
    for at, word, side in ((prepare, "prepare ", "right"), (go.at, " go", "left")):
        axes.axvline(at - zero, ymax=0.86, color=_INK, linewidth=1.1, linestyle=(0, (4, 3)))
        axes.text(at - zero, 1.0, word, fontsize=_LARGE, color=_INK, ha=side, va="center")


def main() -> None:
    """Run a job that grows and shrinks once, and draw it."""
    interrupt_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the PNG")
    parser.add_argument("--of", type=Path, help="draw the run in this folder instead of a new one")
    options = parser.parse_args()
    if options.of:
        draw(story(options.of), options.out)
        return
    with tempfile.TemporaryDirectory(prefix="flexo-timeline-") as folder:
        _run(Path(folder) / "run")
        draw(story(Path(folder) / "run"), options.out)


def _run(folder: Path) -> None:
    lab = bring_up(LabSpec(name=f"timeline{os.getpid()}", nodes=2, infer_nodes=0))
    try:
        rival = Flexo(lab, CORE_TORCH, CORES[CORE_TORCH])
        with running(rival, Training(folder, largest=BIG), SMALL) as log:
            wait_until_settled(rival, log, SMALL, SETTLED)
            for size in (BIG, SMALL):
                asked_at = rival.resize(size)
                wait_until_settled(rival, log, size, SETTLED, asked_at)
    finally:
        lab.down()


if __name__ == "__main__":
    main()
