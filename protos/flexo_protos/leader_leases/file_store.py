"""A leader lease in a folder that several hosts share, as slurmctld's StateSaveLocation is.

The lease is a file `active.N`, called a record here, which is whole before it has that name. The next record
is `active.N+1`. It is made with link(2), which succeeds for one caller only, on NFS too (open(2), "O_EXCL").
That link is the compare-and-swap. It needs no lock, which a stopped process or a host that is cut off would
keep, and which some mounts do not have.

An NFS client may remember an old listing of the folder. To make a file there renews the listing. So a swap
lists the folder after it has made its file, and again after it has linked the file. A caller with an old
listing loses.

On a full disk there is no room for a new file. So some old records stay, and the oldest is written anew in
its own space. Its writer first renames it to a name of its own, which only one of several writers can do.
Then the writer links it like any other. A reader with an old listing checks again whether the name is still
there. If an NFS client remembers even that name, it reads the next record early, or a mixture, under a number
too old to swap. Then it waits longer, because the writer counts from before it wrote (HeldLease), or it tries
again.

A folder has no clock: no lease in it ends by itself.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from flexo_protos.leader_leases.lease import Found, LeaderLease, LeaseFormat, StoreUnavailable

_NAME = re.compile(r"active\.(\d+)")
_TRIES = 3
"""Number of attempts to read a record, which its writer may just have replaced by the next."""
_KEPT = 4
"""Number of records kept: the newest, the one before, which a reader may be about to read, and two more for
their space. A process that is killed on a full disk may take one with it."""
_LENGTH = 512
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class FileLeaseStore:
    """A LeaseStore in `folder`, which must be there, on a file system with hard links."""

    def __init__(self, folder: Path, kept_as: LeaseFormat) -> None:
        self.name = f"the folder {folder}"
        self._folder = folder
        self._format = kept_as

    def read(self) -> Found:
        """See LeaseStore."""
        with self._explained():
            for _ in range(_TRIES):
                version = self.newest()
                if version == 0:
                    return Found(None, 0)
                path = self._path(version)
                with suppress(FileNotFoundError):
                    text = path.read_text(encoding="utf-8", errors="replace")
                    path.stat()  # without this name, the file may have been written anew meanwhile
                    return Found(self._format.from_text(text, str(path)), version)
        raise StoreUnavailable(f"{self.name}: what it lists is gone whenever it is read")

    def swap(self, version: int, lease: LeaderLease) -> Found:
        """See LeaseStore. Raises ValueError for a lease that is to end by itself."""
        if lease.expires_in_s:
            raise ValueError(f"{self.name} has no clock: it can keep no lease that is to end by itself")
        return Found(lease, version + 1) if self._replace(version, lease) else self.read()

    def close(self) -> None:
        """See LeaseStore: nothing is held."""

    def _replace(self, version: int, lease: LeaderLease) -> bool:
        own = self._folder / f".{secrets.token_hex(8)}"
        with self._explained():
            if self.newest() != version:  # checked before the new file takes what may be the last room
                return False
            try:
                self._write(own, self._format.as_text(lease).encode().ljust(_LENGTH))
                return self.newest() == version and self._link(own, version + 1)
            finally:
                own.unlink(missing_ok=True)

    def _write(self, own: Path, data: bytes) -> None:
        try:
            with own.open("xb", buffering=0) as file:
                _fill(file, data)
        except OSError as error:
            if error.errno not in _NO_ROOM or not self._take_over_oldest(own):
                raise
            with own.open("r+b", buffering=0) as file:
                _fill(file, data)

    def _take_over_oldest(self, own: Path) -> bool:
        """Rename the oldest record to `own`, unless it is the newest as well; return whether that worked."""
        *old, _ = sorted(self.versions()) or [0]
        with suppress(FileNotFoundError):  # another writer was faster
            if old:
                self._path(old[0]).rename(own)
                return True
        return False

    def _link(self, own: Path, version: int) -> bool:
        path = self._path(version)
        with suppress(FileExistsError):
            os.link(own, path)
        if not _is_same(own, path):  # the answer of link(2) does not count: NFS may lose it, and ask again
            return False
        if self.newest() != version:
            path.unlink(missing_ok=True)  # the number had been used before, and its record thrown away since
            return False
        self._throw_away_before(version - _KEPT + 1)
        return True

    def _throw_away_before(self, version: int) -> None:
        for number in self.versions():
            if number < version:
                self._path(number).unlink(missing_ok=True)

    def newest(self) -> int:
        """The number of the newest version in the folder; 0: there is none."""
        return max(self.versions(), default=0)

    def versions(self) -> list[int]:
        """The numbers of all versions in the folder."""
        return [int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]

    def _path(self, version: int) -> Path:
        return self._folder / f"active.{version}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            if self._folder.stat().st_mode & stat.S_IWOTH:
                raise StoreUnavailable(f"{self.name}: everybody may write there: chmod o-w {self._folder}")
            yield
        except OSError as error:
            raise StoreUnavailable(f"{self.name}: {error.strerror or error}") from error


def _fill(file: FileIO, data: bytes) -> None:
    if file.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file.truncate()
    os.fsync(file.fileno())


def _is_same(own: Path, path: Path) -> bool:
    """Whether both names lead to one file.

    The number of links cannot tell: a former record may still have its earlier writer's name too.
    """
    try:
        return own.samefile(path)
    except FileNotFoundError:
        return False
