"""Refuses folders of labs that another user can change, because root runs programs from them.

The path is opened name by name, from / on: a user who can rename a folder on the path can replace everything
below that folder. If no other user can, the path is safe to use afterwards: it leads to the same place.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import ExitStack
from pathlib import Path

from flexo_lab.errors import UnsafeFolder

_MOST_LINKS = 40
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check(root: Path, *inside: str) -> None:
    """Raise UnsafeFolder if anybody but root and the caller can change `root`, or a folder named by `inside`.

    Names that do not exist yet pass. `root` and `inside` must be folders, not links. A folder above `root`
    may be writable by all if it is sticky, as /var/tmp is; a link above it must belong to root or the caller.
    """
    above, links = list(root.parts[:-1]), 0
    here, at = Path("/"), None
    with ExitStack() as opened:
        while above:
            name = above.pop(0)
            entry = _open(opened, here / name, at)
            if entry is None:
                return
            status = os.fstat(entry)
            if stat.S_ISLNK(status.st_mode):
                _check_owner(here / name, status)
                if (links := links + 1) > _MOST_LINKS:
                    raise _unsafe(here / name, "is a link that leads to too many others")
                above = [*Path(os.readlink("", dir_fd=entry)).parts, *above]
                continue
            here, at = here / name, entry
            _check_owner(here, status)
            if not status.st_mode & stat.S_ISVTX:
                _check_mode(here, status)
        for name in (root.name, *inside):
            entry = _open(opened, here / name, at)
            if entry is None:
                return
            here, at = here / name, entry
            _check_own(here, os.fstat(entry))


def _open(opened: ExitStack, path: Path, at: int | None) -> int | None:
    """Open the last name of `path` in the folder `at`; None if there is no such name."""
    try:
        entry = os.open(path.name or "/", os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unsafe(path, f"cannot be looked at: {error.strerror}") from error
    opened.callback(os.close, entry)
    return entry


def _check_own(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise _unsafe(path, "is a link" if stat.S_ISLNK(status.st_mode) else "is no folder")
    _check_owner(path, status)
    _check_mode(path, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise _unsafe(path, f"belongs to {_name(status.st_uid)}")


def _check_mode(path: Path, status: os.stat_result) -> None:
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise _unsafe(path, f"has mode {stat.S_IMODE(status.st_mode):04o}, so others may write there")


def _unsafe(path: Path, why: str) -> UnsafeFolder:
    own = "root" if os.geteuid() == 0 else f"root or {_name(os.geteuid())}"
    return UnsafeFolder(
        f"{path} {why}: a lab needs folders that belong to {own} and that nobody else may write to, because "
        "programs of the lab are started from there; remove it if you do not need it, or set FLEXO_LABS to "
        "another folder"
    )


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user id {uid})"
    except KeyError:
        return f"user id {uid}"
