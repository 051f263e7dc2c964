"""The lists of `flexo top`: from a picture of flexod to rows of cells. All functions are pure."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from flexo.words import duration
from flexo_cli import job_words
from flexo_cli.live.picture import Picture
from flexo_cli.loans import due
from flexo_cli.output import ago, printable
from flexo_protos.v1 import admin_pb2

GAP: Final = "  "
"""What stands between two cells."""
_WIDE: Final = 120
"""Least width of a screen, in characters, on which no state is cut short, and only long names are."""
_NARROW_NAME: Final = 10
_WIDE_NAME: Final = 32
_STYLES: Final = {
    "resizing": "yellow",
    "starting": "cyan",
    "suspended": "yellow",
    "no leader": "red",
    "training": "green",
}


class List(enum.Enum):
    """The lists that the user can look at, in the order of the screen."""

    JOBS = "jobs"
    PENDING = "pending"
    POOL = "pool"
    LOANS = "loans"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Table:
    """One list: its title, the names of its columns, those aligned to the right, and its cells."""

    title: str
    columns: tuple[str, ...]
    right: frozenset[str]
    rows: Sequence[tuple[Text, ...]]


def tables_of(picture: Picture, width: int | None, now: float) -> dict[List, Table]:
    """The lists that there are. `width` None: nothing is cut, and each node has a line."""
    most = (_NARROW_NAME if width < _WIDE else _WIDE_NAME) if width else None
    tables = {List.JOBS: _jobs(picture.jobs.jobs, most)}
    if picture.jobs.waiting:
        tables[List.PENDING] = _pending(picture.jobs.waiting, most, now)
    if picture.status.HasField("pool"):
        tables[List.POOL] = _pool(picture)
    if picture.loans.lending:
        tables[List.LOANS] = _loans(picture.loans.loans, now)
    tables[List.NODES] = _nodes(picture, width)
    return tables


def _jobs(jobs: Sequence[admin_pb2.ElasticJob], most: int | None) -> Table:
    """The list of running jobs; resizing jobs come first, training jobs last.

    `most`: limit of the characters of a job's or a user's name, or of a state.
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
                _cut(printable(job.name), most),
                _cut(printable(job.user), most),
                _size(job),
                Text(f"{job.progress:.0%}" if job.progress else ""),
                Text(job_words.left(job)),
                _cut(printable(state), most, _STYLES.get(state, "magenta")),
                Text(printable(job_words.aggregators(job)) if summed else ""),
                Text(printable("; ".join(job.reasons)) or printable(job_words.nodes(job)), style="dim"),
            )
        )
    why = "WHY NO MORE, OR WHERE"
    columns = ("JOB", "NAME", "USER", "SIZE", "DONE", "LEFT", "STATE", "AGGREGATORS", why)
    right = frozenset({"JOB", "DONE", "LEFT"})
    return _without_empty({"NAME", "AGGREGATORS"}, Table("jobs", columns, right, rows))


def _pending(waiting: Sequence[admin_pb2.WaitingJob], most: int | None, now: float) -> Table:
    """The list of pending jobs; the one whose turn is next comes first, and those without a place last."""
    listed = sorted(waiting, key=lambda job: (job.place or math.inf, job.submitted_at, job.job_id))
    rows = [
        (
            Text(job_words.job_name(job)),
            _cut(printable(job.name), most),
            _cut(printable(job.user), most),
            Text(f"{job.min}-{job.max}"),
            Text(str(job.place or "")),
            Text(ago(job.submitted_at, now) if job.submitted_at else ""),
            Text(_starts(job.starts_at, now)),
            Text(printable(job.waits_for) or printable(job_words.waits_for(job)), style="dim"),
        )
        for job in listed
    ]
    columns = ("JOB", "NAME", "USER", "RANGE", "PLACE", "WAITED", "STARTS", "WAITS")
    right = frozenset({"JOB", "PLACE", "WAITED", "STARTS"})
    return _without_empty({"NAME", "PLACE", "STARTS"}, Table("pending jobs", columns, right, rows))


def _starts(at: float, now: float) -> str:
    """The start that the cluster plans: ``in 2 h``; "" if it plans none."""
    if not at:
        return ""
    return f"in {duration(at - now)}" if at > now else "now"


def _pool(picture: Picture) -> Table:
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
    right = frozenset({"SLURM JOB", "CPU", "PLANNED", "GRADIENTS"})
    return _without_empty({"NODE", "SLURM JOB"}, Table("pool Aggregators", columns, right, rows))


def _without_empty(optional: Container[str], table: Table) -> Table:
    """`table` without those of the `optional` columns that are empty in all rows."""
    filled = [
        index
        for index, name in enumerate(table.columns)
        if name not in optional or any(row[index] for row in table.rows)
    ]
    columns = tuple(table.columns[index] for index in filled)
    return replace(table, columns=columns, rows=[tuple(row[index] for index in filled) for row in table.rows])


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
    """The job's workers and range, as in `flexo jobs`, and its limit: ``4>6/2-8 cap 6``."""
    cap = f" cap {job.wanted}" if job.wanted else ""
    return Text(job_words.size(job) + cap, style="" if job.workers == job.granted else "yellow")


def _loans(loans: Iterable[admin_pb2.LoanView], now: float) -> Table:
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
    return Table("servers on loan", columns, frozenset({"FOR", "WORKERS"}), rows)


def _nodes(picture: Picture, width: int | None) -> Table:
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
    across = max(1, (width + len(GAP)) // (longest + len(GAP))) if width else 1
    for cell in cells:
        cell.pad_right(longest - len(cell))
    rows = [tuple(cells[start : start + across]) for start in range(0, len(cells), across)]
    title = "nodes: # in use, = satellites, . idle, x unusable; L on loan, < called back"
    return Table(title, (), frozenset(), rows)


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
