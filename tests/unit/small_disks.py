"""A file system that is full, for tests of who keeps a leader lease on one. Mounting takes root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """`folder` with room for 64 KiB."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "flexo-test", str(folder)]
    done = subprocess.run(mounted, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leaves no block free; what is freed later can be filled again."""
    with (disk / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
