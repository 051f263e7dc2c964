"""Boxes, arrows and words as SVG, in colours for light and for dark screens.

A drawing has a ground of its own, so it can be read wherever it stands. Lengths are in pixels of the drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

LINE: Final = 17
"""From one line of text to the next."""
_LETTER: Final = {"": 7.4, "title": 8.2, "small": 6.8}
"""The width of a letter in each style, rather more than less: the reader's font is not known."""

_STYLE: Final = """\
.ground{fill:#fff}.room{fill:#eef5f4;stroke:#8fb3ae}.part{fill:#fff;stroke:#2f7d73}
.busy{fill:#cfe8e3;stroke:#2f7d73}.lent{fill:#fdf0d5;stroke:#b98a2d}
.way{fill:none;stroke:#44605c;stroke-width:1.5}.head{fill:#44605c}
text{font:13px system-ui,sans-serif;fill:#1c2b29}.title{font-weight:600}.small{font-size:12px;fill:#44605c}
@media (prefers-color-scheme:dark){.ground{fill:#1b2326}.room{fill:#222e31;stroke:#53706c}
.part{fill:#1b2326;stroke:#63b3a8}.busy{fill:#27504a;stroke:#63b3a8}.lent{fill:#4a3c1c;stroke:#d3a64a}
.way{stroke:#a9c4c0}.head{fill:#a9c4c0}text{fill:#e6efee}.small{fill:#a9c4c0}}"""

_HEAD: Final = (
    '<defs><marker id="head" markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9"'
    ' refX="8" refY="4.5" orient="auto-start-reverse">'
    '<path class="head" d="M0,0.5 L8.5,4.5 L0,8.5 z"/></marker></defs>'
)


class DoesNotFit(Exception):
    """Text is wider or higher than its box; the message names both."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with lines of text. A `room` has a title on top; the text of other boxes is centred."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    style: str = "part"
    """`room`, `part`, `busy` or `lent`."""

    def svg(self) -> Iterator[str]:
        """Raises DoesNotFit."""
        room = self.style == "room"
        widest = max((_width(line, _text_style(room, i)) for i, line in enumerate(self.lines)), default=0.0)
        if widest + 12 > self.width or LINE * len(self.lines) + 6 > self.height:
            raise DoesNotFit(f"'{' / '.join(self.lines)}' takes more than {self.width:g} by {self.height:g}")
        yield _rectangle(self)
        top = self.y + 19 if room else self.y + self.height / 2 + 4.5 - LINE * (len(self.lines) - 1) / 2
        x, anchor = (self.x + 12, "start") if room else (self.x + self.width / 2, "middle")
        for i, line in enumerate(self.lines):
            yield words(x, top + LINE * i, line, _text_style(room, i), anchor)


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line through points with a head at its end, or at both ends, and words at a place."""

    points: tuple[tuple[float, float], ...]
    lines: tuple[str, ...] = ()
    at: tuple[float, float] = (0, 0)
    """Where the first line of words begins, or ends with `anchor` "end"."""
    both: bool = False
    anchor: str = "start"

    def svg(self) -> Iterator[str]:
        """The line, then the words."""
        route = " ".join(f"{x:g},{y:g}" for x, y in self.points)
        start = ' marker-start="url(#head)"' if self.both else ""
        yield f'<polyline class="way" points="{route}" marker-end="url(#head)"{start}/>'
        for i, line in enumerate(self.lines):
            yield words(self.at[0], self.at[1] + 15 * i, line, "small", self.anchor)


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text that belongs to no box."""

    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"

    def svg(self) -> Iterator[str]:
        """One line of text."""
        yield words(self.x, self.y, self.text, self.style, self.anchor)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Things on a ground of a size; `label` says in a sentence what they show."""

    width: float
    height: float
    label: str
    things: Sequence[Box | Arrow | Words]

    def svg(self) -> str:
        """The file's text. Raises DoesNotFit."""
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        name = f'role="img" aria-label="{escape(self.label)}"'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} {name}>',
                f"<style>{_STYLE}</style>",
                _HEAD,
                f'<rect class="ground" width="{self.width:g}" height="{self.height:g}" rx="8"/>',
                *(line for thing in self.things for line in thing.svg()),
                "</svg>\n",
            )
        )


def words(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    """A line of text. `style`: "", `title` or `small`; `anchor`: `start`, `middle` or `end`."""
    named = f' class="{style}"' if style else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:g}" y="{y:g}"{named}{placed}>{escape(text, quote=False)}</text>'


def _rectangle(box: Box) -> str:
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    return f'<rect class="{box.style}" {place} rx="6"/>'


def _text_style(room: bool, line: int) -> str:
    return ("title" if line == 0 else "small") if room else ""


def _width(text: str, style: str) -> float:
    return len(text) * _LETTER[style]
