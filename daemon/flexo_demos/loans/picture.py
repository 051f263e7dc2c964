"""The picture of the day: traffic and lent servers, and the holder of each inference server over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flexo_demos.loans.looks import BASE, INFERENCE, SATELLITES, Look
from flexo_demos.loans.report import InferenceJob, Reclaim

_COLOURS = {INFERENCE: "#e08a3c", SATELLITES: "#7fb2dd", BASE: "#1f4e79"}
_LENT, _INK, _LATE = "#dff0d8", "#333333", "#b02a2a"
_NAMES = {
    INFERENCE: "inference",
    SATELLITES: "satellites of the elastic job",
    BASE: "base of the fungible job",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """The data of the picture. Times are seconds since the epoch; `began_at` becomes 0."""

    began_at: float
    servers: tuple[str, ...]
    looks: Sequence[Look]
    inference: Sequence[InferenceJob]
    reclaims: Sequence[Reclaim]


def draw(scene: Scene, path: Path) -> None:
    """Draw the scene into the PNG file `path`. This needs no display."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6), layout="constrained", dpi=130)
        servers, traffic = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_servers(servers, scene)
        _draw_traffic(traffic, scene)
        figure.savefig(path)


def _draw_servers(axes: Axes, scene: Scene) -> None:
    """Draw a row for each server: a light background while it is lent, a bar for the holder of its GPUs."""
    for row, server in enumerate(reversed(scene.servers)):
        _stretches(axes, scene, row, 0.86, [(server in look.lent, _LENT) for look in scene.looks])
        for word, colour in _COLOURS.items():
            shown = [(look.on(server) == word, colour) for look in scene.looks]
            _stretches(axes, scene, row, 0.6, shown)
        for reclaim in scene.reclaims:
            if reclaim.server == server:
                _mark_reclaim(axes, scene, row, reclaim)
        for job in scene.inference:
            if job.server == server and job.started_at is not None and job.found in (SATELLITES, BASE):
                _mark_wait(axes, scene, row, job)
    axes.set_yticks(range(len(scene.servers)), list(reversed(scene.servers)))
    axes.set_ylim(-0.6, len(scene.servers) + 0.35)
    patches = [Patch(color=_LENT, label="lent and open")]
    patches += [Patch(color=colour, label=_NAMES[word]) for word, colour in _COLOURS.items()]
    axes.legend(handles=patches, loc="upper center", ncols=4, frameon=False, fontsize=9)
    axes.set_title(
        "brackets: from the demand for a server to its being empty; ▼: an inference job is submitted for it",
        fontsize=9,
        color=_INK,
        loc="left",
    )


def _stretches(axes: Axes, scene: Scene, row: int, height: float, shown: Sequence[tuple[bool, str]]) -> None:
    """Draw bars over stretches of polls. `shown`: for each poll, whether to draw, and the colour."""
    since: float | None = None
    times = [look.at - scene.began_at for look in scene.looks]
    for at, (holds, colour) in zip(times, shown, strict=True):
        if holds and since is None:
            since = at
        elif not holds and since is not None:
            axes.barh(row, at - since, height, left=since, color=colour)
            since = None
    if since is not None:
        axes.barh(row, times[-1] - since, height, left=since, color=shown[-1][1])


def _mark_reclaim(axes: Axes, scene: Scene, row: int, reclaim: Reclaim) -> None:
    begin, end = reclaim.demanded_at - scene.began_at, reclaim.empty_at - scene.began_at
    colour = _LATE if reclaim.missed else _INK
    axes.plot(
        [begin, begin, end, end], [row + 0.36, row + 0.42, row + 0.42, row + 0.36], color=colour, linewidth=1
    )
    axes.text(begin, row + 0.44, f"{reclaim.seconds:.1f} s", color=colour, fontsize=8, va="bottom")


def _mark_wait(axes: Axes, scene: Scene, row: int, job: InferenceJob) -> None:
    axes.plot(job.submitted_at - scene.began_at, row + 0.36, marker="v", color=_COLOURS[INFERENCE],
              markersize=5, markeredgecolor=_INK, markeredgewidth=0.5)  # fmt: skip


def _draw_traffic(axes: Axes, scene: Scene) -> None:
    times = [look.at - scene.began_at for look in scene.looks]
    lent = [len(look.lent) for look in scene.looks]
    used = [sum(look.trains_on(server) for server in scene.servers) for look in scene.looks]
    axes.fill_between(times, lent, step="post", color=_LENT, linewidth=0, label="lent and open")
    axes.step(times, used, where="post", color=_COLOURS[BASE], linewidth=1.4, label="used by training")
    axes.step(times, [look.needed for look in scene.looks], where="post", color=_COLOURS[INFERENCE],
              linewidth=1.8, label="traffic")  # fmt: skip
    axes.set_ylim(0, len(scene.servers) * 1.3)
    axes.set_yticks(range(len(scene.servers) + 1))
    axes.set_ylabel("servers")
    axes.set_xlim(times[0], max(times[-1], times[0] + 1.0))
    axes.set_xlabel("seconds since the day began, in the evening")
    axes.legend(loc="upper center", ncols=3, frameon=False, fontsize=9)
