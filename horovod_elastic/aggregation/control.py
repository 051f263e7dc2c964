"""How a node's agent steers the sums of its job, and learns what they are: two files beside the Aggregator's.

An assignment names the Aggregators of a pool, or in the job's satellites, that sum the job's parts, in place
of the nodes' own. Without any, the nodes' own do. The present generation migrates to it, and the next one
begins with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod_elastic.aggregation.place import write_file
from horovod_elastic.aggregation.plan import Plan, PlannedNode

MOST_ASSIGNED = 1024
_ASSIGNMENT, _USAGE = "assignment.json", "usage.json"


@dataclass(frozen=True, slots=True)
class AssignedAggregator:
    """An Aggregator of a pool. `share`: how many of the job's parts it sums, in proportion to the others."""

    host: str
    port: int
    token: str
    share: int = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """The pool's Aggregators for a job. A later assignment has a higher version."""

    version: int = 0
    assigned: tuple[AssignedAggregator, ...] = ()
    in_satellites: bool = False
    """Whether they are in the job's own satellites instead of a pool."""


@dataclass(frozen=True, slots=True)
class AggregatorUsage:
    """What this node's Aggregator does for its job."""

    bytes: int
    """Bytes of all sums that the job's latest generation makes, each counted once, as nodes send them: half
    precision in single precision."""
    rounds: int
    """How often the key was summed in this generation that makes up most of its sums."""
    version: int
    """The version of the assignment in use; 0: none."""
    cpu_s: float = 0.0
    """CPU seconds of the Aggregator's process since it was started."""


def assign(
    folder: Path, version: int, assigned: Sequence[AssignedAggregator], *, in_satellites: bool = False
) -> None:
    """Have the job's sums made by this assignment. Raises OSError."""
    made = Assignment(version, tuple(assigned), in_satellites)
    write_file(folder / _ASSIGNMENT, assignment_to_text(made))


def assignment(folder: Path) -> Assignment:
    """The assignment in `folder`; one without Aggregators if there is none, or none that can be read."""
    try:
        return assignment_from_text((folder / _ASSIGNMENT).read_text())
    except (OSError, ValueError):
        return Assignment()


def assignment_to_text(made: Assignment) -> str:
    """The assignment as text."""
    assigned = [[each.host, each.port, each.token, each.share] for each in made.assigned]
    return json.dumps([made.version, assigned, made.in_satellites])


def assignment_from_text(text: str) -> Assignment:
    """The assignment in `text`. Raises ValueError."""
    try:
        version, assigned, in_satellites = json.loads(text)
        made = Assignment(
            int(version),
            tuple(AssignedAggregator(str(h), int(p), str(t), int(s)) for h, p, t, s in assigned),
            bool(in_satellites),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"an assignment that cannot be read: {error}") from error
    if len(made.assigned) > MOST_ASSIGNED or any(each.share < 1 for each in made.assigned):
        raise ValueError(f"an assignment of {len(made.assigned)} Aggregators, each with a share of 1 or more")
    return made


def with_assignment(plan: Plan, made: Assignment) -> Plan:
    """The plan with the assigned Aggregators as its pool."""
    pool = [
        PlannedNode(f"{each.host}:{each.port}", (), each.host, each.port, each.token, each.share)
        for each in made.assigned
    ]
    return plan.with_pool(made.version, pool)


def assignment_of(plan: Plan) -> Assignment:
    """The assignment that the plan's pool is from."""
    pool = [node for node in plan.nodes if not node.ranks]
    return Assignment(
        plan.version, tuple(AssignedAggregator(node.host, node.port, node.token, node.share) for node in pool)
    )


def tell_usage(folder: Path, used: AggregatorUsage) -> None:
    """Tell the agent what the Aggregator in `folder` does. Raises OSError."""
    write_file(folder / _USAGE, json.dumps([used.bytes, used.rounds, used.version, used.cpu_s]))


def usage(folder: Path) -> AggregatorUsage | None:
    """What the Aggregator in `folder` does; None if it has not told."""
    try:
        size, rounds, version, cpu_s = json.loads((folder / _USAGE).read_text())
        return AggregatorUsage(int(size), int(rounds), int(version), float(cpu_s))
    except (OSError, ValueError, TypeError):
        return None
