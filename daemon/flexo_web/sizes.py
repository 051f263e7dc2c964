"""A job's workers over time, from the grants that flexod's events begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo_protos.v1 import admin_pb2

LEAVING: Final = "leaving"
"""The state of a grant that its job gives back."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a job's granted workers, at seconds since the epoch."""

    at: float
    before: int
    after: int
    event: int
    """Index of its event in the list that the sizes were made of."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Granted workers over time: base and satellites, from the first known event on."""

    first: int
    """The workers before the first step."""
    steps: tuple[Step, ...]

    @property
    def last(self) -> int:
        """The workers after the last step."""
        return self.steps[-1].after if self.steps else self.first


def sizes_of(
    events: Sequence[admin_pb2.Event], base_workers: int, standing: Iterable[admin_pb2.GrantView]
) -> Sizes:
    """The sizes of one run of a job.

    `events`: of this run, oldest first; older ones may be missing. `standing`: its present grants.
    A grant whose beginning is missing stood before the first event.
    """
    held = _before(events, standing)
    first = size = base_workers + sum(held.values())
    steps = []
    for index, event in enumerate(events):
        change = event.grant
        if change.begins and change.workers:
            held[change.node] = change.workers
        elif change.node:
            held.pop(change.node, None)
        now = base_workers + sum(held.values())
        if now != size:
            steps.append(Step(event.at, size, now, index))
        size = now
    return Sizes(first, tuple(steps))


def _before(events: Iterable[admin_pb2.Event], standing: Iterable[admin_pb2.GrantView]) -> dict[str, int]:
    """The workers by node before the first event."""
    held: dict[str, int] = {}
    seen: set[str] = set()
    for event in events:
        change = event.grant
        if change.node and change.node not in seen and not change.begins:
            held[change.node] = change.workers
        seen.add(change.node)
    now: Mapping[str, int] = {grant.node: grant.workers for grant in standing if grant.state != LEAVING}
    return held | {node: workers for node, workers in now.items() if node not in seen}
