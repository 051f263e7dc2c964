"""Geometry of the picture of a job's workers over time: paths of an SVG that is stretched to its place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from flexo_web.sizes import Sizes, Step

WIDTH: Final = 1000
HEIGHT: Final = 200
_LEAST_SPAN_S: Final = 60.0
_TIMES: Final = 4
"""The parts of the span at whose ends times are written."""
_PARTS: Final = 100
"""The end of a running job's picture moves on in such parts of its span, so that the page seldom changes."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A step in the picture."""

    x: float
    y: float
    step: Step


@dataclass(frozen=True, slots=True)
class Chart:
    """The picture. Coordinates: `WIDTH` x `HEIGHT`, the origin above on the left."""

    begins_at: float
    ends_at: float
    most: int
    """Workers at the upper edge; none are at the lower one."""
    line: str
    area: str
    grid: tuple[float, ...]
    """Heights of horizontal lines."""
    least_y: float
    """Height of the job's minimum."""
    marks: tuple[Mark, ...]
    between: tuple[float, ...]
    """Times between the ends, at equal distances."""


def chart_of(sizes: Sizes, begins_at: float, now: float, least: int, most: int, ended: bool) -> Chart:
    """The picture of `sizes` from `begins_at` to `now`. `least`, `most`: the job's range."""
    top = max(most, sizes.first, *(step.after for step in sizes.steps), 1)
    ends_at = now if ended else _rounded_up(begins_at, now)
    span = max(ends_at - begins_at, _LEAST_SPAN_S)
    ends_at = begins_at + span

    def x(at: float) -> float:
        return round(min(max((at - begins_at) / span, 0.0), 1.0) * WIDTH, 1)

    def y(workers: int) -> float:
        return round(HEIGHT - workers / top * HEIGHT, 1)

    line = f"M0 {y(sizes.first)}"
    for step in sizes.steps:
        line += f"H{x(step.at)}V{y(step.after)}"
    line += f"H{x(now)}"
    return Chart(
        begins_at=begins_at,
        ends_at=ends_at,
        most=top,
        line=line,
        area=f"{line}V{HEIGHT}H0Z",
        grid=tuple(y(workers) for workers in range(0, top + 1, math.ceil(top / 8))),
        least_y=y(least),
        marks=tuple(Mark(x(step.at), y(step.after), step) for step in sizes.steps),
        between=tuple(begins_at + span * part / _TIMES for part in range(1, _TIMES)),
    )


def _rounded_up(begins_at: float, now: float) -> float:
    part = max((now - begins_at) / _PARTS, 1.0)
    part = 2.0 ** math.ceil(math.log2(part))
    return begins_at + math.ceil((now - begins_at) / part) * part
