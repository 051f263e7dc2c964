"""The demo's picture: the holders of the training GPUs over time, and the elastic job's loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexo_demos.elastic.measure import Resize
from flexo_demos.elastic.queue import Holdings

_BASE, _SATELLITES, _RIGID, _RIGID_INK, _IDLE = "#1f4e79", "#7fb2dd", "#e08a3c", "#a85a14", "#ececec"
_INK, _EACH_BATCH = "#333333", "#c4c4c4"
_MEAN_OF = 30
_TAIL_S = 20.0
"""Seconds that are drawn after the last resize and the rigid job's end. Nothing but training follows."""
_LABEL_WIDTH = 0.06
"""Width of a label, as a part of the picture's width."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The data of the picture. Times are seconds since the epoch; `began_at` becomes 0."""

    began_at: float
    gpus: int
    """GPUs of all training nodes together."""
    holdings: Holdings
    loss: Sequence[tuple[float, float]]
    resizes: Sequence[Resize]
    rigid_submitted_at: float | None
    rigid_started_at: float | None


def draw(scene: Scene, path: Path) -> None:
    """Draw the scene into the PNG file `path`. This needs no display."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6), layout="constrained", dpi=130)
        gpus, loss = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_gpus(gpus, scene)
        _draw_loss(loss, scene)
        figure.savefig(path)


def _draw_gpus(axes: Axes, scene: Scene) -> None:
    held = scene.holdings
    times = [at - scene.began_at for at in held.at]
    floor = [0] * len(times)
    for counts, colour, label in (
        (held.base, _BASE, "elastic job: its own Slurm job"),
        (held.satellites, _SATELLITES, "elastic job: satellites"),
        (held.rigid, _RIGID, "rigid job"),
    ):
        top = [low + count for low, count in zip(floor, counts, strict=True)]
        axes.fill_between(times, floor, top, step="post", color=colour, linewidth=0, label=label)
        floor = top
    axes.fill_between(times, floor, scene.gpus, step="post", color=_IDLE, linewidth=0, label="idle")
    end = _drawn_until(scene)
    axes.set_xlim(0, end)
    axes.set_ylim(0, scene.gpus * 1.32)
    axes.set_yticks(range(0, scene.gpus + 1, max(1, scene.gpus // 9)))
    axes.set_ylabel("GPUs held")
    axes.axhline(scene.gpus, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(end, scene.gpus, f"{scene.gpus} training GPUs", ha="right", va="bottom", color=_INK, fontsize=9)
    axes.legend(loc="upper center", ncols=4, frameon=False, fontsize=9)
    _mark_rigid(axes, scene)


def _drawn_until(scene: Scene) -> float:
    """Seconds that the picture shows."""
    held = scene.holdings
    last = held.at[-1] - scene.began_at if held.at else 1.0
    events = [resize.at for resize in scene.resizes]
    events += [at for at, count in zip(held.at, held.rigid, strict=True) if count]
    return min(last, max(events) - scene.began_at + _TAIL_S) if events else last


def _mark_rigid(axes: Axes, scene: Scene) -> None:
    """Mark the rigid job's submission and its start, and write its waiting time."""
    if scene.rigid_submitted_at is None:
        return
    marks, text = [scene.rigid_submitted_at - scene.began_at], "rigid job submitted"
    if scene.rigid_started_at is not None:
        marks.append(scene.rigid_started_at - scene.began_at)
        text += f", started {scene.rigid_started_at - scene.rigid_submitted_at:.1f} s later"
    height = scene.gpus * 1.12
    for mark in marks:
        axes.axvline(mark, ymax=height / axes.get_ylim()[1], color=_RIGID_INK, linewidth=1.2)
    axes.text(marks[-1], height, f" {text}", ha="left", va="top", color=_RIGID_INK, fontsize=9)


def _draw_loss(axes: Axes, scene: Scene) -> None:
    """Draw the loss of every batch in grey, the mean of the last ones in black, and changes of workers."""
    times = [at - scene.began_at for at, _ in scene.loss]
    losses = [loss for _, loss in scene.loss]
    means = [fmean(losses[max(0, end - _MEAN_OF) : end]) for end in range(1, len(losses) + 1)]
    axes.plot(times, losses, color=_EACH_BATCH, linewidth=0.6)
    axes.plot(times, means, color=_INK, linewidth=1.6)
    axes.set_yscale("log")
    axes.set_ylim(top=axes.get_ylim()[1] * 8)
    _label_resizes(axes, scene)
    end = _drawn_until(scene)
    if times and times[-1] > end:
        said = f"trains on until {times[-1]:.0f} s → "
        axes.text(end, 0.97, said, transform=axes.get_xaxis_transform(), ha="right", va="top", fontsize=9)
    axes.set_ylabel(f"loss (mean of {_MEAN_OF} batches)")
    axes.set_xlabel("seconds since the elastic job was submitted; blue lines: its number of workers changes")


def _label_resizes(axes: Axes, scene: Scene) -> None:
    """Label the changes of workers. A label that would touch the one before goes one row down."""
    width = axes.get_xlim()[1]
    last, row = -width, 0
    for resize in scene.resizes:
        at = resize.at - scene.began_at
        row = row + 1 if at - last < _LABEL_WIDTH * width else 0
        last = at
        axes.axvline(at, color=_SATELLITES, linewidth=1)
        axes.text(
            at,
            0.97 - 0.11 * (row % 3),
            f" {resize.before} → {resize.after}",
            transform=axes.get_xaxis_transform(),
            va="top",
            color=_BASE,
            fontsize=9,
        )
