"""Reads a table with a header as a stream of lines: their cells by column, as text or as numbers.

Spreadsheets and scripts write the same table in many ways. Columns may be in any order, and further columns
are allowed. Lines may end as on Windows, empty lines are skipped, and cells may be quoted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

from flexo_simulation.formats.errors import BadTrace, BadValue
from flexo_simulation.workload import BadLine

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_MOST_SECONDS: Final = 1e11
_MOST_WHOLE: Final = 10**12
_SHOWN: Final = 40
"""The most characters of a cell that an error repeats."""
_TRUE_FALSE: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
    "": False,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `columns`: the index of each column's cell, by the column's name in small letters."""

    line: int
    """The number of the line, from 1."""
    columns: Mapping[str, int]
    cells: Sequence[str]

    def text(self, column: str) -> str:
        """The text of the column, without blanks around it; "" if there is no such column."""
        place = self.columns.get(column.casefold())
        return "" if place is None else self.cells[place].strip()

    def refusal(self, column: str, takes: str) -> BadValue:
        """The error for the content of `column`; `takes` says what is allowed."""
        cell = self.text(column)
        what = f"'{_cut(cell)}'" if cell else "nothing"
        return BadValue(f"{column} is {what}: it takes {takes}")

    def number(self, column: str, takes: str) -> float:
        """The cell as a number, at most 1e11 either way. `takes`: what the error says is allowed."""
        cell = self.text(column)
        if _NUMBER.fullmatch(cell) is None or abs(value := float(cell)) > _MOST_SECONDS:
            raise self.refusal(column, takes)
        return value

    def seconds(self, column: str) -> float:
        """The cell as a length of time above 0."""
        takes = "seconds above 0, as in 3600"
        value = self.number(column, takes)
        if value <= 0:
            raise self.refusal(column, takes)
        return value

    def whole(self, column: str, least: int = 0) -> int:
        """The cell as a whole number, at least `least`. 4.0 is allowed, since pandas writes whole numbers
        so."""
        takes = f"a whole number from {least}"
        value = self.number(column, takes)
        if not value.is_integer() or not least <= value <= _MOST_WHOLE:
            raise self.refusal(column, takes)
        return int(value)

    def whole_or(self, column: str, otherwise: int, least: int = 0) -> int:
        """The cell as a whole number; `otherwise` if it is empty."""
        return self.whole(column, least) if self.text(column) else otherwise

    def flag(self, column: str) -> bool:
        """The cell as yes or no; no if it is empty."""
        value = _TRUE_FALSE.get(self.text(column).casefold())
        if value is None:
            raise self.refusal(column, "true or false")
        return value

    def moment(self, column: str) -> float:
        """The cell as seconds since an epoch, from seconds or from a stamp such as 2017-10-09 07:01:55.

        A stamp without an offset is read as UTC; in the hour in which summer time ends, that is a guess.
        """
        cell = self.text(column)
        if _NUMBER.fullmatch(cell):
            return self.number(column, "a time")
        try:
            stamp = datetime.fromisoformat(cell)
        except ValueError:
            takes = "seconds, or a time as in 2017-10-09 07:01:55"
            raise self.refusal(column, takes) from None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def rows_of_csv(
    file: TextIO, name: str, required: Sequence[str], comments: bool = False
) -> Iterator[Row | BadLine]:
    """The lines below the header; with `comments`, lines that begin with # are skipped.

    One line is one job: an open quote spoils its own line, not the rest of the file. Raises BadTrace if the
    header lacks a `required` column, or has one twice.
    """
    columns: Mapping[str, int] | None = None
    for number, line in enumerate(file, start=1):
        if comments and line.startswith("#"):
            continue
        try:
            cells = next(csv.reader([line], strict=True), [])
        except csv.Error as error:
            yield BadLine(number, f"is not CSV: {error}")
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if columns is None:
            columns = columns_of(cells, name, number, required)
        else:
            yield row_of(number, columns, cells)
    if columns is None:
        raise BadTrace((f"{name}: is empty; it takes a header with {', '.join(required)}",))


def columns_of(header: Sequence[str], name: str, line: int, required: Sequence[str]) -> Mapping[str, int]:
    """The index of each column. Raises BadTrace if one of `required` is missing, or a column occurs twice."""
    names = [cell.strip().casefold() for cell in header]
    missing = [column for column in required if column.casefold() not in names]
    if missing:
        found = ", ".join(_cut(cell.strip()) for cell in header)
        raise BadTrace((f"{name}:{line}: the header lacks {', '.join(missing)}; it has {found}",))
    twice = {cell for cell in names if cell and names.count(cell) > 1}
    if twice:
        raise BadTrace((f"{name}:{line}: the header has {', '.join(sorted(twice))} twice",))
    return {cell: place for place, cell in enumerate(names) if cell}


def row_of(line: int, columns: Mapping[str, int], cells: Sequence[str]) -> Row | BadLine:
    """The row, if it has a cell for every column; else a BadLine. Empty cells beyond the last column do no
    harm."""
    width = max(columns.values()) + 1
    if len(cells) < width or any(cell.strip() for cell in cells[width:]):
        return BadLine(line, f"has {len(cells)} cells where the header has {width}")
    return Row(line, columns, cells)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
