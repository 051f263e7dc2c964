"""Lays a picture of flexod out on a screen of any size. All functions are pure: from a picture to lines.

The head has facts about the whole cluster. Below it are the lists. The list that the user looks at gets the
rows that the others leave.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from flexo.words import duration
from flexo.words import workers as workers_of
from flexo_cli import job_words
from flexo_cli.live.picture import Picture
from flexo_cli.loans import due, lending_line
from flexo_cli.output import ago, printable
from flexo_protos.v1 import admin_pb2

_OTHERS_ROWS: Final = 3
"""Rows of a list that the user does not look at."""
_HEADINGS: Final = 2
"""Number of lines above a list."""
_LEAST_ROWS: Final = 6
"""Rows of all lists together. If there is room for fewer, only the list that the user looks at is shown."""
_WIDE: Final = 120
"""Least width of a screen, in characters, on which no name or state is cut short."""
_NARROW_NAME: Final = 12
_GAP: Final = "  "
_STYLES: Final = {
    "resizing": "yellow",
    "starting": "cyan",
    "suspended": "yellow",
    "no leader": "red",
    "training": "green",
    "pending": "dim",
}


class List(enum.Enum):
    """The lists that the user can look at, in the order of the screen."""

    JOBS = "jobs"
    POOL = "pool"
    LOANS = "loans"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The list that the user looks at, and the scroll position in it."""

    looked_at: List = List.JOBS
    first: int = 0
    """The first visible row of that list, from 0."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the screen, in characters."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The screen's lines."""

    lines: list[Text]
    rows: int
    """Visible rows of the list that the user looks at."""
    of: int
    """All rows of that list."""
    lists: tuple[List, ...] = (List.JOBS,)
    """The lists that there are."""


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    columns: tuple[str, ...]
    right: frozenset[str]
    rows: Sequence[tuple[Text, ...]]


def screen(picture: Picture, size: Size, place: Cursor, away: str, now: float) -> Shown:
    """Lay `picture` out on a screen. `away`: why there is no newer picture, or ""."""
    head = [*_away(away, picture.at, now), *_head(picture, now)]
    tables = _tables(picture, size.width, now)
    lists = tuple(tables)
    if place.looked_at not in tables:  # flexod lends no more, or has no pool any more
        place = Cursor()
    if size.height - len(head) - 1 < _HEADINGS * len(tables) + _LEAST_ROWS:
        tables = {which: table for which, table in tables.items() if which is place.looked_at}
    room = max(1, size.height - len(head) - 1 - _HEADINGS * len(tables))
    lines, shown, of = list(head), 0, 0
    rooms = _rooms(tables, place.looked_at, room)
    last = max(0, len(tables[place.looked_at].rows) - rooms[place.looked_at])
    place = replace(place, first=min(place.first, last))  # the list may have become shorter
    for which, table in tables.items():
        first = place.first if which is place.looked_at else 0
        lines += _list(table, first, rooms[which], which is place.looked_at)
        if which is place.looked_at:
            shown, of = min(rooms[which], len(table.rows) - first), len(table.rows)
    lines = lines[: size.height - 1]
    lines += [Text()] * (size.height - 1 - len(lines))
    lines.append(_foot(place, shown, of, lists))
    for line in lines:
        line.truncate(size.width, overflow="ellipsis")
    return Shown(lines, shown, of, lists)


def page(picture: Picture, width: int | None, now: float) -> list[Text]:
    """Lay out the whole picture, to print it once. `width` None: nothing is cut, and each node has a line."""
    lines = _head(picture, now)
    for table in _tables(picture, width, now).values():
        lines += _list(table, 0, len(table.rows), False)
    if width:
        for line in lines:
            line.truncate(width, overflow="ellipsis")
    return lines


def nothing_yet(away: str) -> list[Text]:
    """The screen before the first picture."""
    return [Text(away or "asking flexod ...", style="red" if away else ""), Text(), Text("q quits", "dim")]


def _away(away: str, at: float, now: float) -> list[Text]:
    if not away:
        return []
    text = f" {ago(at, now)} old; trying again: {printable(away)}"
    return [Text(text, style="bold white on red", no_wrap=True)]


def _head(picture: Picture, now: float) -> list[Text]:
    status = picture.status
    mode = " (dry run)" if status.dry_run else ""
    software = status.software or "Slurm"
    cluster = f"{status.cluster}, {software} {status.slurm_version}" if status.cluster else "not known yet"
    lines = [
        _named("cluster", f"{cluster}, policy {status.policy}{mode}"),
        _named("GPUs", job_words.gpus(status)),
        _named("jobs", _jobs_line(picture.jobs.jobs)),
    ]
    if status.HasField("pool"):
        lines.append(_named("pool", job_words.pool(status.pool)))
    if status.HasField("lending"):
        lines.append(_named("loans", lending_line(status.lending)))
    lines.append(_named("next", _next(picture, now)))
    for gpu in status.slow_gpus:
        lines.append(_named("slow GPU", job_words.slow_gpu(gpu)))
    if status.trouble:
        lines.append(_named("trouble", status.trouble, "red"))
    return lines


def _named(name: str, text: str, style: str = "") -> Text:
    line = Text(f"{name:<9}", style="bold", no_wrap=True)
    return line.append(printable(text), style=style or "not bold")


def _jobs_line(jobs: Sequence[admin_pb2.ElasticJob]) -> str:
    states = Counter(
        job_words.job_state(job) if job.attached and not job.pending_command else "" for job in jobs
    )
    leaders = sum(job.attached for job in jobs)
    workers = sum(job.workers for job in jobs)
    granted = sum(job.granted for job in jobs)
    most = sum(min(job.max, job.wanted or job.max) for job in jobs)
    moving = f", {states['resizing']} resizing" if states["resizing"] else ""
    return (
        f"{len(jobs)} elastic, {leaders} with a leader{moving};"
        f" {workers_of(workers)} train{'s' if workers == 1 else ''}, {granted} granted, {most} at most"
    )


def _next(picture: Picture, now: float) -> str:
    """The time of flexod's next poll, and the order in which it starts pending jobs."""
    status, order = picture.status, picture.nodes.order
    if not status.last_cycle_at:
        return "flexod has not seen the cluster yet"
    wait = status.last_cycle_at + status.interval_s - now
    look = f"looks again in {duration(wait)}" if wait >= 1 else "looks now"
    if wait < -2 * max(1.0, status.interval_s):
        look = f"last look {ago(status.last_cycle_at, now)} ago"
    if not order:
        return look
    return f"{look}; starts pending jobs in the order {' '.join(map(str, order[:50]))}"


def _tables(picture: Picture, width: int | None, now: float) -> dict[List, _Table]:
    most = _NARROW_NAME if width and width < _WIDE else None
    tables = {List.JOBS: _jobs(picture.jobs.jobs, most)}
    if picture.status.HasField("pool"):
        tables[List.POOL] = _pool(picture)
    if picture.loans.lending:
        tables[List.LOANS] = _loans(picture.loans.loans, now)
    tables[List.NODES] = _nodes(picture, width)
    return tables


def _jobs(jobs: Sequence[admin_pb2.ElasticJob], most: int | None) -> _Table:
    """The list of jobs; resizing jobs come first, training jobs last.

    `most`: limit of the characters of a user's name, or of a state.
    """
    interest = {"resizing": 0, "no leader": 1, "suspended": 1, "starting": 2, "training": 4}
    listed = sorted(jobs, key=lambda job: (interest.get(job_words.job_state(job), 3), job.job_id))
    summed = job_words.any_aggregators(jobs)
    rows = []
    for job in listed:
        state = job_words.job_state(job)
        rows.append(
            (
                Text(job_words.job_name(job)),
                _cut(printable(job.user), most),
                Text(f"{job.min}-{job.max}" + (f" cap {job.wanted}" if job.wanted else "")),
                _size(job),
                Text(f"{job.progress:.0%}" if job.progress else ""),
                Text(job_words.left(job)),
                _cut(printable(state), most, _STYLES.get(state, "magenta")),
                *((Text(printable(job_words.aggregators(job))),) if summed else ()),
                Text(printable("; ".join(job.reasons)) or printable(job_words.nodes(job)), style="dim"),
            )
        )
    aggregators = ("AGGREGATORS",) if summed else ()
    columns = (
        "JOB",
        "USER",
        "RANGE",
        "WORKERS",
        "DONE",
        "LEFT",
        "STATE",
        *aggregators,
        "WHY NO MORE, OR WHERE",
    )
    return _Table("jobs", columns, frozenset({"JOB", "WORKERS", "DONE", "LEFT"}), rows)


def _pool(picture: Picture) -> _Table:
    """The list of pool Aggregators, the busiest first; no column that is empty for all of them."""
    uses = {job.job_id: job.aggregation for job in picture.jobs.jobs if job.HasField("aggregation")}
    listed = sorted(picture.status.pool.aggregators, key=lambda each: (-each.cores_used, each.name))
    columns = ("AGGREGATOR", "NODE", "SLURM JOB", "CPU", "PLANNED", "GRADIENTS", "JOBS, AND WHAT THEY LOSE")
    rows = [
        (
            Text(printable(each.name)),
            Text(printable(each.node)),
            Text(str(each.slurm_job_id or "")),
            Text(f"{each.cores_used:.0%}"),
            Text(f"{each.use:.0%}"),
            Text(f"{each.gradient_bytes / (1 << 20):.1f} MiB"),
            Text(_with_losses(each.job_ids, uses), style="" if each.job_ids else "dim"),
        )
        for each in listed
    ]
    filled = [
        index for index in range(len(columns)) if index not in (1, 2) or any(row[index] for row in rows)
    ]
    return _Table(
        "pool Aggregators",
        tuple(columns[index] for index in filled),
        frozenset({"SLURM JOB", "CPU", "PLANNED", "GRADIENTS"}),
        [tuple(row[index] for index in filled) for row in rows],
    )


def _with_losses(job_ids: Sequence[int], uses: Mapping[int, admin_pb2.JobAggregation]) -> str:
    """``17 -3%, 18``; ``idle`` without jobs."""
    named = (f"{job}{job_words.loss(uses[job]) if job in uses else ''}" for job in job_ids)
    return ", ".join(named) or "idle"


def _cut(text: str, most: int | None, style: str = "") -> Text:
    cut = Text(text, style=style)
    if most:
        cut.truncate(most, overflow="ellipsis")
    return cut


def _size(job: admin_pb2.ElasticJob) -> Text:
    """The job's workers: ``4``, or ``4>6`` on the way from 4 to the 6 that are granted."""
    if job.workers == job.granted:
        return Text(str(job.workers))
    return Text(f"{job.workers}>{job.granted}", style="yellow")


def _loans(loans: Iterable[admin_pb2.LoanView], now: float) -> _Table:
    """The list of loans; the earliest deadline comes first."""
    listed = sorted(loans, key=lambda loan: (loan.deadline_at or float("inf"), loan.node))
    rows = [
        (
            Text(printable(loan.node)),
            Text(duration(max(0.0, now - loan.since_at))),
            Text(loan.state, style="green" if loan.state == "lent" else "yellow"),
            Text(due(loan.deadline_at, now), style="red" if 0 < loan.deadline_at < now else ""),
            Text(str(loan.satellite_workers or "")),
            Text(" ".join(map(str, loan.bases))),
            Text(printable(loan.why_back or loan.why), style="dim"),
        )
        for loan in listed
    ]
    columns = ("NODE", "FOR", "STATE", "EMPTY BY", "WORKERS", "BASES", "WHY")
    return _Table("servers on loan", columns, frozenset({"FOR", "WORKERS"}), rows)


def _nodes(picture: Picture, width: int | None) -> _Table:
    """The nodes with GPUs, in flexod's order, as many side by side as fit into `width`."""
    taken: Counter[str] = Counter()
    for job in picture.jobs.jobs:
        for grant in job.grants:
            taken[grant.node] += grant.workers * job.gpus_per_worker
    lent = {loan.node: loan.state for loan in picture.loans.loans}
    with_gpus = [node for node in picture.nodes.nodes if node.gpus]
    names = max((len(node.name) for node in with_gpus), default=0)
    cells = [_node(node, taken[node.name], lent.get(node.name, ""), names) for node in with_gpus]
    longest = max(map(len, cells), default=1)
    across = max(1, (width + len(_GAP)) // (longest + len(_GAP))) if width else 1
    for cell in cells:
        cell.pad_right(longest - len(cell))
    rows = [tuple(cells[start : start + across]) for start in range(0, len(cells), across)]
    title = "nodes: # in use, = satellites, . idle, x unusable; L on loan, < called back"
    return _Table(title, (), frozenset(), rows)


def _node(node: admin_pb2.NodeView, in_satellites: int, lent: str, names: int) -> Text:
    """One node and its GPUs: ``n1  ##==....``."""
    used = min(node.gpus, node.gpus_allocated)
    satellites = min(used, in_satellites)
    cell = Text(f"{printable(node.name):<{names}} ")
    cell.append("#" * (used - satellites), style="blue")
    cell.append("=" * satellites, style="green")
    cell.append(("x" if node.unusable else ".") * (node.gpus - used), style="red" if node.unusable else "dim")
    if lent:
        cell.append(" L" if lent == "lent" else " <", style="yellow")
    return cell


def _rooms(tables: dict[List, _Table], looked_at: List, room: int) -> dict[List, int]:
    """The number of rows for each list."""
    rooms = {
        which: min(len(table.rows), max(1, min(_OTHERS_ROWS, room // 4)))
        for which, table in tables.items()
        if which is not looked_at
    }
    rooms[looked_at] = min(len(tables[looked_at].rows), max(1, room - sum(rooms.values())))
    for which, table in tables.items():  # spare rows go to the other lists, from the top
        spare = room - sum(rooms.values())
        rooms[which] += max(0, min(spare, len(table.rows) - rooms[which]))
    return rooms


def _list(table: _Table, first: int, room: int, looked_at: bool) -> list[Text]:
    """Title, names of columns, and visible rows. All rows count for the widths: no column jumps."""
    title = Text(f"{table.title}, {len(table.rows)}" if table.columns else table.title, no_wrap=True)
    title.stylize("bold reverse" if looked_at else "bold")
    if not table.columns:
        shown = table.rows[first : first + room]
        return [title, *(Text(_GAP, no_wrap=True).join(row) for row in shown)]
    heads = tuple(Text(name, style="bold dim") for name in table.columns)
    everything = [heads, *table.rows]
    widths = [max(len(row[index]) for row in everything) for index in range(len(heads))]
    lines = [_row(row, widths, table) for row in (heads, *table.rows[first : first + room])]
    return [title, *lines]


def _row(row: tuple[Text, ...], widths: Sequence[int], table: _Table) -> Text:
    cells = []
    for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padded = cell.copy()
        last = index == len(widths) - 1
        if table.columns[index] in table.right:
            padded.pad_left(width - len(cell))
        elif not last:
            padded.pad_right(width - len(cell))
        cells.append(padded)
    return Text(_GAP, no_wrap=True).join(cells)


def _foot(place: Cursor, shown: int, of: int, lists: Sequence[List]) -> Text:
    rows = f"{place.first + 1}-{place.first + shown} of {of}" if of else "none"
    clock = time.strftime("%H:%M:%S")
    names = " ".join(each.value for each in lists)
    text = f"q quits   Tab: {names}   arrows: {place.looked_at.value} {rows}   {clock}"
    return Text(text, style="reverse", no_wrap=True)
