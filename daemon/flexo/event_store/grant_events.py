"""What an event changes of its job's grants, read from the sentences in the event store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BEGUN: Final = {
    "grow": re.compile(r"grow by (?P<workers>\d+) workers? on (?P<node>\S+): "),
    "adopt": re.compile(
        r"satellite (?P<job>\d+) with (?P<workers>\d+) workers? on (?P<node>\S+) is taken over"
    ),
}
_ENDED: Final = {
    "shrink": re.compile(r"give back (?P<workers>\d+) workers? on (?P<node>\S+): "),
    "failure": re.compile(r"(?P<workers>\d+) workers? on (?P<node>\S+): "),
    "left": re.compile(r"satellite (?P<job>\d+) with (?P<workers>\d+) workers? has left (?P<node>[^\s,:]+)"),
    "lost": re.compile(r"satellite (?P<job>\d+) with (?P<workers>\d+) workers? has left (?P<node>[^\s,:]+)"),
}
_SENTENCES: Final = _BEGUN | _ENDED
KINDS: Final = tuple(_SENTENCES)
"""The kinds of events that may begin or end a grant."""
_MOST_WORKERS: Final = 1_000_000
"""More than any cluster has: a text with a larger number is damaged."""


@dataclass(frozen=True, slots=True)
class GrantChange:
    """A grant that an event begins or ends. A job has one satellite a node, so the node names the grant."""

    node: str
    workers: int
    begins: bool
    """False: the grant ends. The first of a grant's shrink, failure, left and lost events ends it."""
    satellite_job_id: int = 0
    """0: the sentence does not have it."""


def change_of(kind: str, text: str) -> GrantChange | None:
    """The change in an event of this kind and text; None if it changes no grant."""
    sentence = _SENTENCES.get(kind)
    found = sentence.match(text) if sentence else None
    if found is None:
        return None
    parts = found.groupdict()
    workers, job = int(parts["workers"][:10]), int((parts.get("job") or "0")[:20])
    if workers > _MOST_WORKERS:
        return None
    return GrantChange(parts["node"], workers, kind in _BEGUN, job)
