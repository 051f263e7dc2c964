"""The states of a job as Markdown: each table of membership/states.py as a picture and as a table."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from markdown_text import cell, table

from horovod_elastic.leader.membership.states import TABLES, Table

_ROW, _BOX_WIDTH, _BOX_HEIGHT, _TOP = 44, 150, 26, 8
"""Of the picture, in pixels: from one state to the next, and the box of a state."""


def parts() -> Mapping[str, str]:
    """What a page can ask for, by name."""
    return {f"states of {each.of}": f"{picture(each)}\n\n{transitions(each)}" for each in TABLES}


def transitions(of: Table[Any, Any]) -> str:
    """One line for each transition."""
    rows = ((cell(a.value), cell(event.value), cell(b.value)) for a, event, b in of.transitions())
    return table(("state", "what happens", "next state"), rows)


def picture(of: Table[Any, Any]) -> str:
    """States below each other. Arrows on the right lead down, arrows on the left lead up."""
    states = list(of.rows)
    steps = {(states.index(a), states.index(b)) for a, _, b in of.transitions()}
    reach = max((abs(a - b) for a, b in steps), default=0)
    side = 30 + 24 * reach
    width, height = _BOX_WIDTH + 2 * side, _TOP * 2 + _ROW * len(states)
    point = f"point-of-{of.of.replace(' ', '-')}"
    lines = [*_boxes(states, side), *(_arrow(a, b, side, point) for a, b in sorted(steps))]
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="states of {of.of}">'
    return "\n".join(['<div class="states">', head, _POINT.format(point), *lines, "</svg>", "</div>"])


_POINT = (
    '<defs><marker id="{}" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="currentColor"/></marker></defs>'
)


def _boxes(states: list[enum.Enum], side: int) -> Iterator[str]:
    for at, state in enumerate(states):
        y = _TOP + _ROW * at
        yield (
            f'<rect x="{side}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="none"'
            f' stroke="currentColor"/>'
        )
        yield (
            f'<text x="{side + _BOX_WIDTH / 2:g}" y="{y + _BOX_HEIGHT / 2 + 5:g}" text-anchor="middle"'
            f' font-size="14" fill="currentColor">{escape(str(state.value))}</text>'
        )


def _arrow(a: int, b: int, side: int, point: str) -> str:
    down = b >= a
    x = side + (_BOX_WIDTH if down else 0)
    bow = x + (1 if down else -1) * (24 + 30 * abs(a - b))
    leaves, comes = (_TOP + _ROW * at + _BOX_HEIGHT / 2 for at in (a, b))
    offset = 6 if down else -6
    leaves, comes = leaves + offset, comes - offset
    return (
        f'<path d="M{x},{leaves:g} C{bow},{leaves:g} {bow},{comes:g} {x},{comes:g}" fill="none"'
        f' stroke="currentColor" stroke-opacity="0.6" marker-end="url(#{point})"/>'
    )
