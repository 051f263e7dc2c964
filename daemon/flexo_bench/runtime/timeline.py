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
_WORDS = {"grant": "grant", "prepare": "prepare", "propose": "propose", "go": "go", "left": "gone"}


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
    """Draw three strips: from the grant to training with one more, its last second, and one worker less."""
    grant_at = max(each.at for each in found.told if each.event == "grant" and each.at < found.grown_at)
    figure = Figure(figsize=(11, 8.2), layout="constrained", dpi=130)
    whole, out, back = figure.subplots(3, 1)
    _strip(whole, found, grant_at, grant_at - 1.0, found.grown_at + 2.0)
    whole.set_title("One worker more: from the grant on", loc="left", fontsize=11)
    _strip(out, found, found.grown_at, found.grown_at - 0.7, found.grown_at + 1.0)
    out.set_title("The same, around the switch", loc="left", fontsize=11)
    _strip(back, found, found.shrunk_at, found.shrunk_at - 0.7, found.shrunk_at + 1.0)
    back.set_title("One worker less", loc="left", fontsize=11)
    back.set_xlabel("seconds; first strip: since the grant, others: since the leader's go")
    handles = [Patch(color=colour, label=what) for what, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _strip(axes: Axes, found: Story, zero: float, start: float, end: float) -> None:
    lanes = [lane for lane in found.lanes if any(s.start < end and s.end > start for s in lane.spans)]
    for row, lane in enumerate(lanes):
        for span in lane.spans:
            _bar(axes, span, -row, _LANE, zero)
        for span in lane.preparing:
            _bar(axes, span, -row - _LANE / 2, _LANE / 4, zero)
    axes.set_xlim(start - zero, end - zero)
    axes.set_ylim(-len(lanes) + 0.4, 1.15)
    axes.set_yticks([-row for row in range(len(lanes))], [f"worker {lane.name[1:]}" for lane in lanes])
    axes.spines[["top", "right"]].set_visible(False)
    _mark(axes, [each for each in found.told if start < each.at < end and each.event in _WORDS], zero)


def _bar(axes: Axes, span: Span, middle: float, height: float, zero: float) -> None:
    axes.barh(
        middle, span.end - span.start, height, left=span.start - zero,
        color=_COLOURS[span.what], edgecolor="white", linewidth=0.4,
    )  # fmt: skip


def _mark(axes: Axes, told: Sequence[Traced], zero: float) -> None:
    """Draw a line for each event of the leader. Events at once share a label; near labels go up a row."""
    width = axes.get_xlim()[1] - axes.get_xlim()[0]
    labels: list[tuple[float, str]] = []
    for each in told:
        if each.event == "propose" and not each.fields["at"]:
            continue  # this proposal only asks for the workers' position
        at, word = each.at - zero, _WORDS[each.event]
        axes.axvline(at, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))
        if labels and at - labels[-1][0] < 0.01 * width:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {word}")
        else:
            labels.append((at, word))
    last, row = float("-inf"), 0
    for at, label in labels:
        row = row + 1 if at - last < 0.08 * width else 0
        last = at
        axes.text(at, 0.5 + 0.24 * (row % 3), f" {label}", fontsize=8.5, color=_INK, va="bottom")


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
