"""The base of an opportunistic job keeps the parked state of training, in a file of its node.

The file is in a private folder of the job, in the folder that FLEXO_PARKED_FOLDER or TMPDIR names, or /tmp.
It holds the head of the state and then its bytes. A new state goes into a second file, which takes the
place of the first one when it is whole and on disk. So a crash at any instant leaves one whole state, or
none if there was none. A later leader of the base finds the file again.

`flexo run` holds a lock on the folder, and removes the folder at the end. It also removes the folders of
this user's jobs that nobody holds: those were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic.wire import PIECE_BYTES

FOLDER_VARIABLE = "FLEXO_PARKED_FOLDER"
"""Environment variable: the folder of the base's node in which the job's own folder is made."""
_TRIES = 5
_NAME = re.compile(r"flexo-parked-(\d+)-\S+")
_STATE, _NEW = "state", "new-"
_LENGTH = struct.Struct("<I")
"""Before the head: its length."""


class Unwelcome(Exception):
    """A state that is not kept: not whole, or not that of the job."""


class ParkedStore:
    """The folder of one run of a job (see the module)."""

    def __init__(self, job_id: str, restart_count: int) -> None:
        self.folder = _place() / f"flexo-parked-{os.getuid()}-{job_id}-{restart_count}"
        self._lock = threading.Lock()

    def make(self) -> None:
        """Make the folder, or clear up what a killed agent has left in it. Raises OSError, also if another
        user has made it.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        facts = self.folder.stat(follow_symlinks=False)
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise PermissionError(f"{self.folder} is not a private folder of this user: remove it")
        for left in self.folder.glob(f"{_NEW}*"):
            left.unlink(missing_ok=True)

    def head(self) -> pb.ParkedHead | None:
        """The head of the state that is kept; None if none is."""
        try:
            with (self.folder / _STATE).open("rb") as file:
                return _read_head(file)
        except FileNotFoundError:
            return None

    def keep(self, pieces: Iterator[pb.ParkedPiece], welcome: Callable[[pb.ParkedHead], bool]) -> None:
        """Keep the state that comes in `pieces` instead of the one before.

        `welcome`: whether the state is still that of the job, asked before it takes its place. A state of
        fewer commits than the kept one is late, because training never goes back behind that. Raises
        Unwelcome, and OSError if the disk is full.
        """
        new = self.folder / f"{_NEW}{secrets.token_hex(8)}"
        try:
            with new.open("wb") as file:
                head = _write(pieces, file)
                file.flush()
                os.fsync(file.fileno())
            with self._lock:
                kept = self.head()
                if not welcome(head) or (kept is not None and head.commits < kept.commits):
                    raise Unwelcome("the state is not that of the job any more")
                new.rename(self.folder / _STATE)
                _sync(self.folder)
        finally:
            new.unlink(missing_ok=True)

    def pieces(self) -> Iterator[pb.ParkedPiece]:
        """The state that is kept, in pieces; nothing if none is."""
        with contextlib.suppress(FileNotFoundError), (self.folder / _STATE).open("rb") as file:
            yield pb.ParkedPiece(head=_read_head(file))
            while content := file.read(PIECE_BYTES):
                yield pb.ParkedPiece(content=content)
            yield pb.ParkedPiece(whole=True)

    def remove(self) -> None:
        """Remove the folder, because the job is over."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def kept_for_run(job_id: str, restart_count: int) -> Iterator[None]:
    """Hold the folder of this run while its agents are there, and remove it afterwards. Raises OSError.

    The agents find the folder in the same place, whatever their own TMPDIR is.
    """
    os.environ[FOLDER_VARIABLE] = str(_place())
    store = ParkedStore(job_id, restart_count)
    with ExitStack() as stack:
        for _ in range(_TRIES):
            store.make()
            stack.enter_context(_locked(store.folder))
            if store.folder.exists():
                break  # no other job has removed it before it was locked
            stack.close()
        _sweep(store.folder)
        try:
            yield
        finally:
            store.remove()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sweep(own: Path) -> None:
    """Remove the folders that killed jobs of this user have left beside `own`."""
    for folder in own.parent.glob(f"flexo-parked-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            if folder != own and _NAME.fullmatch(folder.name) and folder.stat().st_uid == os.getuid():
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _place() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())


def _write(pieces: Iterator[pb.ParkedPiece], file: BinaryIO) -> pb.ParkedHead:
    first = next(pieces, None)
    if first is None or not first.HasField("head"):
        raise Unwelcome("a parked state begins with its head")
    head = first.head.SerializeToString()
    file.write(_LENGTH.pack(len(head)) + head)
    try:
        for piece in pieces:
            if piece.whole:
                return first.head
            file.write(piece.content)
    except OSError:
        raise
    except Exception as error:  # grpc raises a bare Exception when the stream breaks
        raise Unwelcome("the stream of the parked state has broken") from error
    raise Unwelcome("the parked state is not whole")


def _read_head(file: BinaryIO) -> pb.ParkedHead:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    return pb.ParkedHead.FromString(file.read(length))


def _sync(folder: Path) -> None:
    """Have the folder's entries on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
