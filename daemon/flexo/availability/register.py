"""Where the record of the active flexod is kept: one value that is changed by compare-and-swap."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Protocol

from flexo.availability.claim import Record


class RegisterAway(Exception):
    """The register cannot be read or written now; the message says which one, and why."""


@dataclass(frozen=True, slots=True)
class Found:
    """One look at the register."""

    record: Record | None
    version: int
    """Names what was found, for `swap`."""


class Register(Protocol):
    """For one thread. Every call may take as long as its storage does, and raises RegisterAway."""

    name: str
    """For people: where it is."""

    def look(self) -> Found:
        """What it holds. May be old, but never older than an earlier look."""
        ...

    def swap(self, version: int, record: Record) -> bool:
        """Let it hold `record` if it still is what a look called `version`; whether it now does."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def as_text(record: Record) -> str:
    """One line of JSON."""
    return json.dumps(asdict(record))


def from_text(text: str, where: str) -> Record:
    """The record that `text` is. Raises RegisterAway, which names `where`."""
    try:
        said = json.loads(text)
        return Record(
            holder=str(said["holder"]),
            token=str(said["token"]),
            epoch=int(said["epoch"]),
            beat=int(said["beat"]),
            since_at=float(said["since_at"]),
            released=bool(said["released"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RegisterAway(f"{where} holds no record of the active flexod: {error!r}") from error
