"""The register in a folder that all hosts of flexod share, as slurmctld's StateSaveLocation is.

A record is a file `active.N`, whole before it has that name. The next one is `active.N+1`, made with link(2),
which succeeds for one caller only, on NFS too (open(2), "O_EXCL"). So that is the compare-and-swap: no lock
is held, which a stopped process or a host that is cut off would keep, and which some mounts do not have.

An NFS client may remember an old listing of the folder. What it makes itself renews that, so a swap lists the
folder after it has made its file, and again after it has linked it: whoever goes by an old listing loses.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flexo.availability.claim import Record
from flexo.availability.register import Found, RegisterAway, as_text, from_text

_NAME = re.compile(r"active\.(\d+)")
_TRIES = 3
"""To read a file that its writer has just replaced by the next."""


class FileRegister:
    """The register in `folder`, which must be there, on a file system with hard links."""

    def __init__(self, folder: Path) -> None:
        self.name = f"the folder {folder}"
        self._folder = folder

    def look(self) -> Found:
        """See Register."""
        with self._explained():
            for _ in range(_TRIES):
                version = self._newest()
                if version == 0:
                    return Found(None, 0)
                path = self._path(version)
                with suppress(FileNotFoundError):
                    return Found(
                        from_text(path.read_text(encoding="utf-8", errors="replace"), str(path)), version
                    )
        raise RegisterAway(f"{self.name}: what it lists is gone whenever it is read")

    def swap(self, version: int, record: Record) -> bool:
        """See Register."""
        own = self._folder / f".{secrets.token_hex(8)}"
        with self._explained():
            try:
                _write(own, as_text(record))
                return self._newest() == version and self._link(own, version + 1)
            finally:
                own.unlink(missing_ok=True)

    def close(self) -> None:
        """See Register: nothing is held."""

    def _link(self, own: Path, version: int) -> bool:
        path = self._path(version)
        with suppress(FileExistsError):
            os.link(own, path)
        if own.stat().st_nlink < 2:  # not by the answer of link(2): NFS may lose that, and ask again
            return False
        if self._newest() != version:
            path.unlink()  # it had been used before, and thrown away since
            return False
        self._throw_away_before(version - 1)
        return True

    def _throw_away_before(self, version: int) -> None:
        """All but the newest and the one before, which somebody may be about to read."""
        for number in self._versions():
            if number < version:
                self._path(number).unlink(missing_ok=True)

    def _newest(self) -> int:
        return max(self._versions(), default=0)

    def _versions(self) -> list[int]:
        return [int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]

    def _path(self, version: int) -> Path:
        return self._folder / f"active.{version}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            if self._folder.stat().st_mode & stat.S_IWOTH:
                raise RegisterAway(f"{self.name}: everybody may write there: chmod o-w {self._folder}")
            yield
        except OSError as error:
            raise RegisterAway(f"{self.name}: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
