"""How a node's agent steers the node's Aggregator, and learns what its job uses.

Assigned Aggregators are those of a pool that sum a job's parts in place of the nodes' own. Without any, the
nodes' own do.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod_elastic.aggregation import frames, place
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind

ANSWERS_WITHIN_S = 2.0
MOST_ASSIGNED = 1024


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

    version: int
    assigned: tuple[AssignedAggregator, ...] = ()


@dataclass(frozen=True, slots=True)
class AggregatorUsage:
    """What this node's Aggregator does for its job."""

    bytes: int
    """Bytes of all sums that the job's present generation makes in one step."""
    rounds: int
    """How often the first key was summed in this generation."""
    version: int
    """The version of the assignment in use; 0: none."""


def assign(folder: Path, version: int, assigned: Sequence[AssignedAggregator]) -> None:
    """Tell the Aggregator in `folder` which ones sum its job's parts. Raises OSError if it is not there."""
    said = [version, [[each.host, each.port, each.token, each.share] for each in assigned]]
    _ask(folder, Kind.ASSIGN, said)


def usage(folder: Path) -> AggregatorUsage | None:
    """What the Aggregator in `folder` does; None if it is not there."""
    try:
        size, rounds, version = json.loads(_ask(folder, Kind.USAGE, []))
        return AggregatorUsage(int(size), int(rounds), int(version))
    except (OSError, ValueError, TypeError):
        return None


def assignment_from_bytes(data: bytes) -> Assignment:
    """What `assign` has sent, without the token. Raises BadFrame."""
    try:
        version, assigned = json.loads(data)
        made = Assignment(
            int(version),
            tuple(AssignedAggregator(str(h), int(p), str(t), int(s)) for h, p, t, s in assigned),
        )
    except (ValueError, TypeError) as error:
        raise BadFrame(f"an assignment that cannot be read: {error}") from error
    if len(made.assigned) > MOST_ASSIGNED or any(each.share < 1 for each in made.assigned):
        raise BadFrame(f"an assignment of {len(made.assigned)} Aggregators, each with a share of 1 or more")
    return made


def _ask(folder: Path, kind: Kind, said: object) -> bytes:
    """Send one request; return the answer. Raises OSError, also for a refusal."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWERS_WITHIN_S)
        connection.connect(str(place.socket_path(folder)))
        frames.send(connection, Frame(kind), (json.dumps(said).encode(),))
        try:
            answer = frames.receive(connection)
            text = frames.receive_text(connection, answer)
        except (EOFError, BadFrame) as error:
            raise OSError(f"the Aggregator gives no answer: {error}") from error
        if answer.kind is not Kind.READY:
            raise OSError(f"the Aggregator refuses: {text.decode(errors='replace')}")
        return text
