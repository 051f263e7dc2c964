"""Where a node's Aggregator is: the files in its folder, by which its workers find it.

The folder is the node's own and only the job's user can read it. A second Aggregator in it takes the first
one's place, with the same port and token, so that the other nodes find it again.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FLEXO_AGGREGATOR"
"""Environment variable of workers: the folder of their node's Aggregator."""
_FILE, _SOCKET = "aggregator.json", "aggregator"


@dataclass(frozen=True, slots=True)
class AggregatorPlace:
    """Where other nodes' Aggregators reach one, and what it wants to hear from them and from workers."""

    host: str
    port: int
    token: str


def socket_path(folder: Path) -> Path:
    """The path of the socket at which an Aggregator serves the workers of its node."""
    return folder / _SOCKET


def read(folder: Path) -> AggregatorPlace | None:
    """What the file in `folder` says; None if there is none yet."""
    try:
        said = json.loads((folder / _FILE).read_text())
        return AggregatorPlace(str(said["host"]), int(said["port"]), str(said["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, place: AggregatorPlace) -> None:
    """Write the file. Raises OSError."""
    write_file(folder / _FILE, json.dumps(asdict(place)))


def write_file(path: Path, text: str) -> None:
    """Write a file, whole or not at all, that only this user can read. Raises OSError."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.rename(path)


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_hex(16)
