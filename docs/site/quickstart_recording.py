"""Records docs/images/quickstart.svg: `python docs/site/quickstart_recording.py` types it in a lab.

As root, in flexo's virtual environment. The picture is an animation of a terminal: commands and outputs are
those of this run. Waits are shortened, and the picture says how long they were.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from flexo_lab import Lab, LabSpec, bring_up

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "images" / "quickstart.svg"
SCRIPT = ROOT / "examples" / "digits" / "train_ddp.py"
COMMANDS = (
    "flexo check train_ddp.py",
    "flexo init train_ddp.py --elastic 1-4 -- --epochs 200 --pause 0.2",
    "sbatch train_ddp.sbatch",
    "flexo wait 1 --for=workers=4",
    "flexo jobs",
    'sbatch -N 2 --gpus-per-node=3 --wrap "sleep 20"',
    "sleep 4; flexo jobs",
    "flexo why 1 | head -n 2",
    "flexo wait 1 --for=workers=4",
    "flexo jobs",
    "flexo cost 1",
)
"""The job of the script is the lab's first one."""
TYPED_S, READ_S, LONGEST_S, STAYS_S = 1.0, 1.6, 2.0, 12.0
"""Seconds of the animation: for typing, for reading an output, at most for a wait, and at the end."""
TOLD_S = 4.0
"""A wait of so many seconds or more is told."""
LINE, LEFT, TOP, WIDTH = 19, 16, 30, 900
_STYLE = (
    "<style>rect{{fill:#102027}}text{{fill:#eceff1;font:14px monospace;white-space:pre;"
    "animation:line {total:.1f}s infinite}}.c{{fill:#80cbc4}}.n{{fill:#90a4ae}}{lines}"
    "@media (prefers-reduced-motion:reduce){{text{{animation:none!important}}}}</style>"
)
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    ' aria-label="A terminal: an elastic job grows to four workers, makes room for another job, and'
    ' grows again">'
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the terminal."""

    at_s: float
    """When the animation shows it."""
    text: str
    kind: str
    """The class of its style: "c" for a command, "n" for a note, "o" for an output."""


def record(lab: Lab, folder: Path) -> Iterator[Line]:
    """Type the commands in `folder`, and return what a terminal shows."""
    at_s = 0.5
    for command in COMMANDS:
        yield Line(at_s, f"$ {command}", "c")
        began = time.monotonic()
        output = str(lab.run(["bash", "-c", command], cwd=folder).stdout)
        took_s = time.monotonic() - began
        at_s += TYPED_S + min(took_s, LONGEST_S)
        if took_s >= TOLD_S:
            yield Line(at_s, f"# {took_s:.0f} s later", "n")
        yield from (Line(at_s, line, "o") for line in output.rstrip().splitlines())
        at_s += READ_S


def picture(lines: tuple[Line, ...]) -> str:
    """The animation as SVG, which begins again at its end."""
    total_s = lines[-1].at_s + STAYS_S
    steps = "".join(
        f"@keyframes l{place}{{0%,{100 * line.at_s / total_s:.2f}%{{opacity:0}}"
        f"{100 * line.at_s / total_s + 0.01:.2f}%,100%{{opacity:1}}}}#l{place}{{animation-name:l{place}}}"
        for place, line in enumerate(lines)
    )
    texts = [_text(place, line) for place, line in enumerate(lines)]
    height = TOP + LINE * len(lines)
    head = _HEAD.format(width=WIDTH, height=height)
    style = _STYLE.format(total=total_s, lines=steps)
    ground = f'<rect width="{WIDTH}" height="{height}" rx="8"/>'
    return "\n".join([head, style, ground, *texts, "</svg>", ""])


def _text(place: int, line: Line) -> str:
    top = TOP + LINE * place
    return f'<text id="l{place}" class="{line.kind}" x="{LEFT}" y="{top}">{escape(line.text)}</text>'


def main() -> None:
    """Bring a lab up, record, and take the lab down."""
    lab = bring_up(LabSpec(name="recording", nodes=3, gpus_per_node=3), progress=print)
    try:
        folder = lab.scratch / "digits"
        folder.mkdir()
        shutil.copy(SCRIPT, folder)
        FILE.write_text(picture(tuple(record(lab, folder))), encoding="utf-8")
    finally:
        lab.down()


if __name__ == "__main__":
    main()
