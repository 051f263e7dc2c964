"""A small file system that tests can fill, to test a leader lease on a full disk. Mounting requires root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB at `folder`."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "flexo-test", str(folder)]
    done = subprocess.run(mounted, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fill `disk` until no block is free. A later call fills blocks that were freed meanwhile."""
    with (disk / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
