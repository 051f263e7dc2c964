"""A folder of one's own for a socket. It goes with its process, or with the next one if it is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "flexo-share-"
BEGUN_S: Final = 60.0
"""A younger folder may be one whose process has not locked it yet."""


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder that only this user can enter. Raises OSError."""
    _remove_left()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_left() -> None:
    """Remove this user's folders whose processes were killed: nobody holds their locks any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is somebody else's, or goes meanwhile
            found = folder.lstat()
            if found.st_uid != os.getuid() or time.time() < found.st_mtime + BEGUN_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
