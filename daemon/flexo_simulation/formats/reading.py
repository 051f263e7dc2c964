"""The common parts of all readers of traces: their options, their errors, and how jobs are gathered.

A reader goes through its file once, as a stream. A line that makes no sense refuses the whole file, or is
skipped and counted, as the user chose. A job that makes sense but has no place in a simulation is left out,
counted by reason.
"""

from __future__ import annotations

import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TextIO, TypeVar, cast

from flexo_simulation.formats.errors import BadTrace, BadValue, NotSimulated
from flexo_simulation.workload import BadLine, LeftOut, TraceJob, Workload

STANDARD_INPUT: Final = Path("-")
NO_GPUS: Final = "ask for no GPU"
HELD_NONE: Final = "held no GPU for a second"
NO_TIME: Final = "ran for no time"
_SHOWN: Final = 10
"""The most bad lines that an error names; the others are only counted."""


class Numbered(Protocol):
    """One record of a file: a row of a table, or an application."""

    @property
    def line(self) -> int:
        """Its number, from 1."""


_T = TypeVar("_T")
_R = TypeVar("_R", bound=Numbered)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of readers; each reader uses those that its format knows."""

    skip_bad: bool = False
    """Whether lines that make no sense are skipped and counted; else they refuse the file."""
    profiles: Path | None = None
    """The folder with measured speeds of models; None: the format's own place, if it has one."""
    partitions: frozenset[str] = frozenset()
    """sacct: only jobs of these partitions; yarn: of these queues; empty: of all."""
    cluster: str = ""
    """sacct: only jobs of this cluster; "": the dump must be of one cluster."""


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open the file, or the standard input for `-`. Raises BadTrace if it cannot be read.

    A byte order mark is skipped. Bytes that are not UTF-8 become U+FFFD, so that one odd name spoils nothing.
    """
    try:
        if path == STANDARD_INPUT:
            yield _text(sys.stdin.buffer, shown(path))
            return
        with path.open("rb") as file:
            yield _text(file, shown(path))
    except OSError as error:
        raise BadTrace((f"{path}: cannot be read: {error.strerror or error}",)) from error


def _text(file: BinaryIO, name: str) -> TextIO:
    buffered = file if isinstance(file, BufferedReader) else BufferedReader(cast(RawIOBase, file))
    if buffered.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
        raise BadTrace((f"{name}: is text in UTF-16; it takes UTF-8, as iconv -f UTF-16 -t UTF-8 makes it",))
    return TextIOWrapper(buffered, encoding="utf-8-sig", errors="replace", newline="")


def shown(path: Path) -> str:
    """The name of the path in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


class Sieve:
    """Converts rows, and counts the lines and jobs that are left out."""

    def __init__(self, path: Path, options: ReadOptions, numbered: str = "") -> None:
        """`numbered`: what a row's number counts, if not lines."""
        self.name = shown(path)
        self._numbered = f" {numbered} " if numbered else ""
        self._skip_bad = options.skip_bad
        self._bad: list[BadLine] = []
        self._left_out: Counter[str] = Counter()

    def sift(self, rows: Iterable[_R | BadLine], convert: Callable[[_R], _T]) -> Iterator[_T]:
        """The result of `convert` for each row for which it raises neither BadValue nor NotSimulated.

        After the last row, raises BadTrace if a line made no sense and such lines are not to be skipped.
        """
        for row in rows:
            if isinstance(row, BadLine):
                self._bad.append(row)
                continue
            try:
                yield convert(row)
            except BadValue as error:
                self._bad.append(BadLine(row.line, str(error)))
            except NotSimulated as error:
                self._left_out[str(error)] += 1
        if self._bad and not self._skip_bad:
            raise BadTrace(self._problems())

    def leave_out(self, why: str, jobs: int = 1) -> None:
        """Count more jobs that are left out; `why` goes on after "jobs that ..."."""
        if jobs:
            self._left_out[why] += jobs

    @property
    def skipped(self) -> tuple[BadLine, ...]:
        """Lines that made no sense."""
        return tuple(self._bad)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Jobs that have no place in a simulation, by reason."""
        return tuple(LeftOut(why, jobs) for why, jobs in self._left_out.items())

    def workload(self, jobs: Iterable[TraceJob], begin: float | None = None) -> Workload:
        """The workload of `jobs`, ordered by `in_order`. Raises BadTrace if there is no job."""
        workload = Workload(self.name, in_order(jobs, begin), self.skipped, self.left_out)
        if not workload.jobs:
            raise BadTrace((f"{self.name}: holds no job to simulate{self._why_none()}",))
        return workload

    def _problems(self) -> tuple[str, ...]:
        told = tuple(f"{self.name}:{self._numbered}{bad.line}: {bad.why}" for bad in self._bad[:_SHOWN])
        if (more := len(self._bad) - len(told)) > 0:
            told += (f"{self.name}: {more} more lines make no sense",)
        return told

    def _why_none(self) -> str:
        reasons = [f"{each.jobs} {each.why}" for each in self.left_out]
        if self._bad:
            reasons.append(f"{len(self._bad)} stand in lines that make no sense")
        return f": of its jobs, {', '.join(reasons)}" if reasons else ""


def in_order(jobs: Iterable[TraceJob], begin: float | None = None) -> tuple[TraceJob, ...]:
    """`jobs` by submission (among equals, by line), numbered from 1.

    Times are counted from `begin`; None: from the first submission.
    """
    ordered = sorted(jobs, key=lambda job: (job.submitted_at, job.line))
    if begin is None:
        begin = ordered[0].submitted_at if ordered else 0.0
    return tuple(
        replace(job, job_id=number, submitted_at=job.submitted_at - begin)
        for number, job in enumerate(ordered, start=1)
    )
