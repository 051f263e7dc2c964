"""Reads a file that decides what a daemon runs, if nobody else can write or replace it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 1 << 20


class NotTrusted(Exception):
    """Somebody else can change the file; the message names the path, who can, and what to do."""


def read_trusted(path: Path) -> str:
    """The text of `path`. The check and the reading use the same open file. Raises NotTrusted, OSError and
    UnicodeDecodeError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _refuse_writers(path, os.fstat(descriptor))
        for folder in sorted(
            {*path.absolute().parents, *path.resolve().parents}, key=lambda each: each.parts
        ):
            _refuse_writers(folder, folder.stat())
        return file.read(_MOST_BYTES).decode("utf-8")


def _refuse_writers(path: Path, found: os.stat_result) -> None:
    """Raises NotTrusted unless root and this account are the only ones who can write `path`."""
    why = "whoever writes it decides what flexod runs"
    if stat.S_ISDIR(found.st_mode):
        why = "whoever writes it can replace the file"
    own = os.geteuid()
    if found.st_uid not in (0, own):
        raise NotTrusted(f"{path}: belongs to uid {found.st_uid}, and {why}: chown root {path}")
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return  # such as /tmp: nobody else can replace files of ours or root's there
    if found.st_mode & stat.S_IWOTH:
        raise NotTrusted(f"{path}: everybody may write it, and {why}: chmod o-w {path}")
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        raise NotTrusted(f"{path}: group {found.st_gid} may write it, and {why}: chmod g-w {path}")
