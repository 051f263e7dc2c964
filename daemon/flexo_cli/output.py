"""Prints the commands' output: aligned tables for people, plain ones for pipes, JSON for scripts.

Names that users chose (jobs, accounts, messages) are data: control characters in them are escaped, and rich
does not interpret markup in them.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flexo.words import duration

_GAP = 2
"""Columns between two columns of a table."""
_UNLIMITED = 10_000
"""Width of a pipe in columns, so large that no line is folded or cut."""

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None


def printable(text: str) -> str:
    r"""`text` with escapes (\x1b, \u202e) for characters that could steer a terminal or reverse text."""
    return "".join(character if _harmless(character) else _escaped(character) for character in text)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    *,
    header: bool = True,
) -> None:
    """Print `rows` under `columns`. Columns in `right` are numbers, aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_header=header)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    _print(table)


def cut_to(
    width: int, columns: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[int]
) -> list[tuple[str, ...]] | None:
    """`rows`, printable, with cells cut so that a table of them fits into `width`; None if none can.

    `least`: for each column the width to which it may be cut, 0: it is never cut. The widest is cut first.
    A cut cell ends with an ellipsis.
    """
    clean = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *clean, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > width:
        cuttable = [at for at, floor in enumerate(least) if floor and widths[at] > floor]
        if not cuttable:
            return None
        widths[max(cuttable, key=widths.__getitem__)] -= 1
    return [tuple(map(_cut, row, widths)) for row in clean]


def _cut(cell: str, width: int) -> str:
    text = Text(cell)
    text.truncate(width, overflow="ellipsis")
    return text.plain


def line_width() -> int:
    """The columns of the terminal; of a pipe $COLUMNS, else 80."""
    return console_for_output().width if sys.stdout.isatty() else shutil.get_terminal_size().columns


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair in each line, with the values aligned."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, Text(printable(value)))
    _print(table)


def print_line(text: str) -> None:
    """Print one sentence or heading, wrapped at words on a terminal."""
    if sys.stdout.isatty():
        console_for_output().print(Text(printable(text)))
    else:
        print_unbroken(text)


def print_unbroken(text: str) -> None:
    """Print what has to be in one piece when it is copied, such as a link: the terminal itself wraps it."""
    sys.stdout.write(f"{printable(text)}\n")


def print_json(value: Json) -> None:
    """Print `value` as one indented JSON document, ASCII only."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def complain(text: str) -> None:
    """Print an error for people on the error output."""
    sys.stderr.write(f"flexo: {printable(text)}\n")


def ago(at: float, now: float | None = None) -> str:
    """The time since `at`, rounded for people: "12 s", "3 min", "2.4 h", "5 d"; "never" for 0."""
    if not at:
        return "never"
    return duration(max(0.0, (time.time() if now is None else now) - at))


def clock(at: float) -> str:
    """`at` in local time, as Slurm prints it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def _print(table: Table) -> None:
    console = console_for_output()
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def console_for_output() -> Console:
    """A console as wide as the terminal; for a pipe, one without limit of width and without colours."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_UNLIMITED, color_system=None)


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
