"""Where a node's Aggregator is: the files in its folder, by which its workers find it.

The folder is the node's own and only the job's user can read it. A second Aggregator in it waits until the
first one is dead, and takes its place with the same port and token, so that the other nodes find it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FLEXO_AGGREGATOR"
"""Environment variable of workers: the folder of their node's Aggregator."""
_FILE, _SOCKET, _LOCK = "aggregator.json", "aggregator", "aggregator.lock"


@dataclass(frozen=True, slots=True)
class AggregatorPlace:
    """Where other nodes' Aggregators reach one, and what it wants to hear from them and from workers."""

    host: str
    port: int
    token: str


def socket_path(folder: Path) -> Path:
    """The path of the socket at which an Aggregator serves the workers of its node."""
    return folder / _SOCKET


def take(folder: Path) -> int:
    """Wait until no other process is the folder's Aggregator, and be it until this process ends.

    Returns the descriptor that stands for it. The kernel closes it as the process dies, and so wakes up the
    next one at once. Raises OSError.
    """
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def holder(folder: Path) -> int:
    """The process that is the folder's Aggregator, or was it last; 0 if none was."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / _LOCK).read_text())
    return 0


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
