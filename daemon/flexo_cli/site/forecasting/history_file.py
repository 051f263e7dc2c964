"""Reads demand from a CSV file with the columns time and servers. Every mistake is reported with its line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

LATEST: Final = 32_503_680_000.0
"""The year 3000, in seconds. A larger time is taken for milliseconds and refused."""
_HEADER: Final = ["time", "servers"]
_SHOWN: Final = 10
"""Number of mistakes that are shown."""

Sample = tuple[float, float]
"""Time in seconds since the epoch, and servers needed then."""


class BadHistory(Exception):
    """A file that has no readable history. `problems` has one sentence for each mistake, with its line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read(path: Path) -> list[Sample]:
    """All samples of the file, in its order. Raises BadHistory, OSError."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            return _samples(file, str(path))
        except UnicodeDecodeError as error:
            raise BadHistory((f"{path}: not a text file in UTF-8: {error.reason}",)) from error


def _samples(file: TextIO, name: str) -> list[Sample]:
    samples: list[Sample] = []
    lines: dict[float, int] = {}
    problems: list[str] = []
    for line, row in _rows(file, name):
        try:
            at, servers = _sample(row)
            if at in lines:
                raise ValueError(f"the time {row[0].strip()} stands in line {lines[at]} already")
        except ValueError as error:
            problems.append(f"{name}:{line}: {error}")
            continue
        lines[at] = line
        samples.append((at, servers))
    if problems:
        more = len(problems) - _SHOWN
        rest = (f"{name}: and {more} more lines like these",) if more > 0 else ()
        raise BadHistory((*problems[:_SHOWN], *rest))
    if not samples:
        raise BadHistory((f"{name}: no line with a time and servers, as in 2026-11-02T08:00:00,41.5",))
    return samples


def _rows(file: TextIO, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row that is not empty, a comment or the header."""
    reader = csv.reader(file)
    first = True
    try:
        for row in reader:
            if not row or row[0].lstrip().startswith("#"):
                continue
            if not (first and [cell.strip().lower() for cell in row] == _HEADER):
                yield reader.line_num, row
            first = False
    except csv.Error as error:
        raise BadHistory((f"{name}:{reader.line_num}: not CSV: {error}",)) from error


def _sample(row: list[str]) -> Sample:
    if len(row) != len(_HEADER):
        raise ValueError(f"{len(row)} columns: it takes two, time,servers")
    return _time(row[0].strip()), _servers(row[1].strip())


def _time(text: str) -> float:
    try:
        at = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise ValueError(
                f"'{text[:60]}' is no time: it takes seconds since the epoch, or 2026-11-02T08:00:00"
            ) from None
    if not 0 <= at < LATEST:
        raise ValueError(f"'{text[:60]}' is no time: it takes seconds (not milliseconds) from 1970 to 2999")
    return at


def _servers(text: str) -> float:
    try:
        servers = float(text)
    except ValueError:
        servers = math.nan
    if not (math.isfinite(servers) and servers >= 0):
        raise ValueError(f"'{text[:60]}' is no number of servers: it takes a number from 0")
    return servers
