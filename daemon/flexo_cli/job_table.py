"""The table of `flexo jobs`: the columns that it can have, and the ones that it has by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo_cli import job_words
from flexo_cli.output import cut_to, line_width, print_table
from flexo_protos.v1 import admin_pb2


class UnknownColumn(ValueError):
    """There is no column of this name; the message names the columns that there are."""


def _nothing(_: admin_pb2.WaitingJob) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Its name in lower case is its name on the command line."""

    name: str
    text: Callable[[admin_pb2.ElasticJob], str]
    """The cell of a running job."""
    waiting: Callable[[admin_pb2.WaitingJob], str] = _nothing
    """The cell of a pending job."""
    number: bool = False
    """Whether it is aligned to the right."""
    least: int = 0
    """The width to which a narrow line may cut it; 0: it is never cut."""


COLUMNS: Final = (
    Column("JOB", job_words.job_name, job_words.job_name, number=True),
    Column("NAME", lambda job: job.name, lambda job: job.name, least=6),
    Column("USER", lambda job: job.user, lambda job: job.user, least=6),
    Column("ACCOUNT", lambda job: job.account, lambda job: job.account, least=7),
    Column("PARTITION", lambda job: job.partition, lambda job: job.partition, least=9),
    Column("SIZE", job_words.size, lambda job: f"0/{job.min}-{job.max}"),
    Column("WORKERS", lambda job: str(job.workers), lambda _: "0", number=True),
    Column("GRANTED", lambda job: str(job.granted), number=True),
    Column("RANGE", lambda job: f"{job.min}-{job.max}", lambda job: f"{job.min}-{job.max}"),
    Column("CAP", lambda job: str(job.wanted) if job.wanted else "", number=True),
    Column("STATE", job_words.job_state, lambda _: job_words.ShownState.PENDING.value, least=8),
    Column("DONE", lambda job: f"{job.progress:.0%}" if job.progress else "", number=True),
    Column("LEFT", job_words.left, number=True),
    Column("AGGREGATORS", job_words.aggregators, least=11),
    Column("NODES", job_words.nodes, job_words.waits_for, least=5),
    Column("REASON", lambda job: "; ".join(job.reasons), job_words.why_waiting, least=6),
)
WIDE: Final = "wide"
"""The format that has every column."""
_BY_NAME: Final = {column.name.lower(): column for column in COLUMNS}
_DEFAULT: Final = ("job", "name", "user", "size", "cap", "state", "done", "left", "aggregators", "nodes")
_IF_ANY: Final[Mapping[str, Callable[[admin_pb2.ElasticJob], bool]]] = {
    "cap": lambda job: bool(job.wanted),
    "aggregators": lambda job: job.HasField("aggregation"),
}
"""Columns that the default table has only if they say something of a job. The last is the first that a narrow
line leaves out."""


def columns_of(names: str) -> tuple[Column, ...]:
    """The columns of a list such as ``job,user,size``, or `WIDE`. Raises UnknownColumn."""
    if names.lower() == WIDE:
        return COLUMNS
    asked = [name.strip().lower() for name in names.split(",")]
    for name in asked:
        if name not in _BY_NAME:
            raise UnknownColumn(f"'{name}' is no column; allowed: {', '.join(_BY_NAME)}, or {WIDE} for all")
    return tuple(_BY_NAME[name] for name in asked)


def print_jobs(
    jobs: Sequence[admin_pb2.ElasticJob],
    waiting: Sequence[admin_pb2.WaitingJob],
    columns: Sequence[Column] | None,
    *,
    header: bool,
) -> None:
    """Print one row for each running job, then one for each pending one.

    Without `columns`: the default ones, cut to the width of the line.
    """
    if columns is not None:
        _print(columns, _rows(jobs, waiting, columns), header)
        return
    width, optional = line_width(), [name for name in _IF_ANY if any(map(_IF_ANY[name], jobs))]
    while True:
        shown = [_BY_NAME[name] for name in _DEFAULT if name not in _IF_ANY or name in optional]
        rows = _rows(jobs, waiting, shown)
        cut = cut_to(width, [column.name for column in shown], rows, [each.least for each in shown])
        if cut is not None or not optional:
            _print(shown, cut or rows, header)
            return
        optional.pop()


def _rows(
    jobs: Sequence[admin_pb2.ElasticJob],
    waiting: Sequence[admin_pb2.WaitingJob],
    columns: Sequence[Column],
) -> list[tuple[str, ...]]:
    return [
        *(tuple(column.text(job) for column in columns) for job in jobs),
        *(tuple(column.waiting(job) for column in columns) for job in waiting),
    ]


def _print(columns: Sequence[Column], rows: Sequence[Sequence[str]], header: bool) -> None:
    numbers = [column.name for column in columns if column.number]
    print_table([column.name for column in columns], rows, right=numbers, header=header)
