"""Reads a dump of sacct: every run of a GPU job in Slurm's accounting, with the times when it waited and ran.

docs/howto/what-if.md has the command that makes the dump. Columns are found by the header, so that another
order and further columns do no harm. Both --parsable (a | ends the line) and --parsable2 are read. sacct
quotes nothing: JobName, which may hold a |, is understood if it is the last column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from flexo.clusters.slurm.hostlist import BadHostlist, expand
from flexo_simulation.formats import sacct_words
from flexo_simulation.formats.accounting import (
    SLURM,
    AccountedRun,
    AccountingDump,
    Holders,
    note,
    workload_of,
)
from flexo_simulation.formats.errors import BadTrace, BadValue, NotSimulated
from flexo_simulation.formats.reading import NO_GPUS, NO_TIME, ReadOptions, Sieve, opened
from flexo_simulation.formats.rows import Row, columns_of, row_of
from flexo_simulation.workload import BadLine, Workload

_HINT: Final = "ask for it with sacct --parsable2 --format=... as docs/howto/what-if.md has it"
_NOTHING: Final = "accounting may be disabled, see AccountingStorageType in scontrol show config"
_ONE_OF: Final = (("JobID", "JobIDRaw"), ("AllocTRES", "ReqTRES"), ("ElapsedRaw", "Elapsed", "End"))
_ENDLESS: Final = frozenset({"RUNNING", "SUSPENDED", "RESIZING", "STAGE_OUT", "COMPLETING"})


def read(path: Path, options: ReadOptions) -> Workload:
    """Read every run of a GPU job in the dump as a job. Raises BadTrace."""
    return workload_of(read_dump(path, options))


def read_dump(path: Path, options: ReadOptions) -> AccountingDump:
    """Read a whole dump. Raises BadTrace if it cannot be simulated; the message says what to do."""
    sieve = Sieve(path, options)
    reader = _Reader(options)
    with opened(path) as file:
        rows = list(sieve.sift(_jobs_only(_rows(file, sieve.name)), reader.chosen))
    _check_clusters(rows, sieve.name)
    once = _without_repeats(rows)
    sieve.leave_out("stand in it twice", len(rows) - len(once))
    runs = _joined(once)
    notes = (
        *note(sum(run.running for run in runs), "jobs that still ran, taken to end when the dump was made"),
        *note(len(once) - len(runs), "components of heterogeneous jobs, joined to the others"),
        *note(_again(runs), "later runs of requeued jobs, each taken as a job"),
        *note(reader.unread_others, "bad lines of other partitions, whose GPUs count as idle"),
    )
    ordered = sorted(_ready_after_the_run_before(runs), key=lambda run: (run.ready_at, run.line))
    others = [run for run in _without_repeats(reader.others) if once and run.cluster == once[0].cluster]
    holders = Holders(tuple(once), tuple(others), reader.names_nodes)
    return AccountingDump(
        SLURM, sieve.name, tuple(ordered), sieve.skipped, sieve.left_out, notes, holders=holders
    )


class _Reader:
    """Reads runs of GPU jobs from rows. Mutable: gathers those that were not chosen."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.others: list[AccountedRun] = []
        """Runs in partitions that were not chosen."""
        self.unread_others = 0
        """Lines of such partitions that make no sense."""
        self.names_nodes = False
        """Whether the dump has the column NodeList."""

    def chosen(self, row: Row) -> AccountedRun:
        """The run, if it was chosen. Raises BadValue, and NotSimulated for any other."""
        self.names_nodes = "nodelist" in row.columns
        if self._options.cluster and row.text("Cluster") != self._options.cluster:
            raise NotSimulated(f"ran on cluster {row.text('Cluster')}")
        partitions = self._options.partitions
        if partitions and partitions.isdisjoint(row.text("Partition").split(",")):
            try:
                self.others.append(_run(row))
            except BadValue:
                self.unread_others += 1
            except NotSimulated:
                pass
            raise NotSimulated(f"ran in partition {row.text('Partition')}")
        return _run(row)


def _rows(file: TextIO, name: str) -> Iterator[Row | BadLine]:
    columns: Mapping[str, int] | None = None
    ends_with = ""
    for number, line in enumerate(file, start=1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        cells = text.removesuffix(ends_with).split("|")
        if columns is None:
            columns = _header(cells, name, number)
            ends_with = "|" if text.endswith("|") else ""
        else:
            yield row_of(number, columns, _with_whole_name(cells, columns))
    if columns is None:
        raise BadTrace((f"{name}: is empty; {_HINT}. {_NOTHING}",))


def _header(cells: list[str], name: str, line: int) -> Mapping[str, int]:
    if len(cells) == 1:
        raise BadTrace((f"{name}:{line}: no header with columns that a | separates; {_HINT}",))
    columns = columns_of(cells, name, line, ("Submit", "Start"))
    for either in _ONE_OF:
        if not any(column.casefold() in columns for column in either):
            raise BadTrace((f"{name}:{line}: the header has none of {', '.join(either)}; {_HINT}",))
    return columns


def _with_whole_name(cells: list[str], columns: Mapping[str, int]) -> list[str]:
    """The cells of a line. A | in JobName, if that is the last column, belongs to the name."""
    last = max(columns.values())
    if columns.get("jobname") != last or len(cells) <= last + 1:
        return cells
    return [*cells[:last], "|".join(cells[last:])]


def _jobs_only(rows: Iterable[Row | BadLine]) -> Iterator[Row | BadLine]:
    for row in rows:
        if isinstance(row, BadLine) or not sacct_words.is_step(_job_id(row)):
            yield row


def _job_id(row: Row) -> str:
    return row.text("JobID") or row.text("JobIDRaw")


def _run(row: Row) -> AccountedRun:
    job_id = _job_id(row)
    if not job_id:
        raise row.refusal("JobID", "a job's number, as in 123 or 123_4")
    gpus, gpu_type = _gpus(row)
    started_at, submitted_at = _moment(row, "Start"), _moment(row, "Submit")
    if submitted_at is None:
        raise row.refusal("Submit", "a time, as in 2026-10-01T12:00:00")
    if started_at is None:
        raise NotSimulated("never started")
    state = row.text("State").split(" ")[0].rstrip("+")
    elapsed_s = _elapsed(row, started_at)
    if elapsed_s == 0:
        raise NotSimulated(NO_TIME)
    return AccountedRun(
        line=row.line,
        job_id=job_id,
        cluster=row.text("Cluster"),
        user=row.text("User"),
        account=row.text("Account"),
        partition=row.text("Partition"),
        job_name=row.text("JobName"),
        ready_at=min(started_at, max(submitted_at, _moment(row, "Eligible") or submitted_at)),
        started_at=started_at,
        elapsed_s=elapsed_s,
        gpus=gpus,
        gpu_type=gpu_type,
        nodes=row.whole_or("NNodes", 0),
        time_limit_s=_time_limit(row),
        running=state in _ENDLESS,
        node_names=_node_names(row),
    )


def _node_names(row: Row) -> tuple[str, ...]:
    text = row.text("NodeList")
    if text.casefold() in sacct_words.NO_NODES:
        return ()
    try:
        return expand(text)
    except BadHostlist:
        raise row.refusal("NodeList", "names of nodes, as in gpu[01-04],gpu07") from None


def _gpus(row: Row) -> tuple[int, str]:
    """The number of GPUs that the run was given (if it never started: asked for), and the type that it asked
    for."""
    given, asked = _gpus_in(row, "AllocTRES"), _gpus_in(row, "ReqTRES")
    gpus = given[0] if row.text("AllocTRES") else asked[0]
    if not gpus:
        raise NotSimulated(NO_GPUS)
    return gpus, asked[1] if row.text("ReqTRES") else given[1]


def _gpus_in(row: Row, column: str) -> tuple[int, str]:
    found = sacct_words.gpus_of(row.text(column))
    if found is None:
        raise row.refusal(column, "amounts such as billing=8,cpu=8,gres/gpu=4")
    return found


def _moment(row: Row, column: str) -> float | None:
    return None if row.text(column).casefold() in sacct_words.NO_TIME_YET else row.moment(column)


def _elapsed(row: Row, started_at: float) -> float:
    for column in ("ElapsedRaw", "Elapsed"):
        if text := row.text(column):
            if (elapsed := sacct_words.elapsed_s(text)) is None:
                raise row.refusal(column, "a length of time, as in 3600 or 1-02:03:04")
            return elapsed
    ended_at = _moment(row, "End")
    if ended_at is None or ended_at < started_at:
        raise row.refusal("End", "a time that is not before Start")
    return ended_at - started_at


def _time_limit(row: Row) -> int | None:
    """The time limit in seconds; None: no limit, or its partition's, which sacct does not report."""
    column = "TimelimitRaw" if row.text("TimelimitRaw") else "Timelimit"
    text = row.text(column)
    if text.casefold() in sacct_words.NO_LIMIT:
        return None
    limit = sacct_words.limit_s(text)
    if limit is None:
        raise row.refusal(column, "minutes, 1-00:00:00, UNLIMITED or Partition_Limit")
    return limit or None


def _check_clusters(runs: Iterable[AccountedRun], name: str) -> None:
    clusters = sorted({run.cluster for run in runs})
    if len(clusters) > 1:
        raise BadTrace((f"{name}: has jobs of several clusters ({', '.join(clusters)}): say --cluster NAME",))


def _without_repeats(runs: Iterable[AccountedRun]) -> list[AccountedRun]:
    """The runs without repeats: a run that is in two joined dumps is taken from the later one."""
    found: dict[tuple[str, float], AccountedRun] = {}
    for run in runs:
        key = (run.job_id, run.started_at)
        if key not in found or run.elapsed_s >= found[key].elapsed_s:
            found[key] = run
    return list(found.values())


def _joined(runs: Iterable[AccountedRun]) -> list[AccountedRun]:
    """The runs, with the components of a heterogeneous job joined: these start together and hold GPUs
    together."""
    found: dict[tuple[str, float], AccountedRun] = {}
    for run in runs:
        name = sacct_words.het_job(run.job_id) or run.job_id
        other = found.get((name, run.started_at))
        found[name, run.started_at] = replace(run, job_id=name) if other is None else _both(other, run)
    return list(found.values())


def _both(one: AccountedRun, other: AccountedRun) -> AccountedRun:
    return replace(
        one,
        gpus=one.gpus + other.gpus,
        nodes=one.nodes + other.nodes,
        gpu_type=one.gpu_type if one.gpu_type == other.gpu_type else "",
        elapsed_s=max(one.elapsed_s, other.elapsed_s),
        running=one.running or other.running,
    )


def _ready_after_the_run_before(runs: Iterable[AccountedRun]) -> Iterator[AccountedRun]:
    """The runs, with corrected ready times: a requeued job waits again from the end of its run before."""
    by_start = sorted(runs, key=lambda run: run.started_at)
    ended_at: dict[str, float] = {}
    for run in by_start:
        ready_at = max(run.ready_at, ended_at.get(run.job_id, run.ready_at))
        ended_at[run.job_id] = run.ended_at
        yield replace(run, ready_at=min(ready_at, run.started_at))


def _again(runs: Sequence[AccountedRun]) -> int:
    return len(runs) - len({run.job_id for run in runs})
