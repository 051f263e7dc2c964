"""How jobs and their coordinator meet: messages and descriptors of pages over a Unix socket.

The kernel says who calls (SO_PEERCRED, unix(7)); nothing that a caller writes about itself is believed.
A message is one packet of JSON, at most MOST_BYTES long, with at most one descriptor of a page.
"""

from __future__ import annotations

import array
import contextlib
import enum
import json
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_elastic.sharing.environment import Role, WrongVariable, checked_gpu

SOCKET = "coordinator.sock"
VERSION = 1
MOST_BYTES = 4096
MOST_DESCRIPTORS = 4
LONGEST_JOB = 128


class BadMessage(ValueError):
    """A packet is no message of this protocol."""


class NoCoordinator(ConnectionError):
    """There is no coordinator, or it is not one to trust."""


class Kind(enum.Enum):
    """What the coordinator says. HELLO and EVICT are what callers say first."""

    HELLO = "hello"
    EVICT = "evict"
    QUEUED = "queued"
    ACCEPTED = "accepted"
    PEER = "peer"
    ALONE = "alone"
    SHARED = "shared"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Hello:
    """A caller's first message."""

    gpu: str
    role: Role
    job: str = ""
    consent: frozenset[int] = frozenset()

    def encoded(self) -> bytes:
        """The packet."""
        told: dict[str, Any] = {"kind": Kind.HELLO.value, "version": VERSION, "gpu": self.gpu}
        told.update(role=self.role.value, job=self.job[:LONGEST_JOB], consent=sorted(self.consent))
        return json.dumps(told).encode()


@dataclass(frozen=True, slots=True)
class Told:
    """What the coordinator says. `pid`: the process that it says it about, 0 if none."""

    kind: Kind
    reason: str = ""
    pid: int = 0

    def encoded(self) -> bytes:
        """The packet."""
        return json.dumps({"kind": self.kind.value, "reason": self.reason[:512], "pid": self.pid}).encode()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, by the kernel."""

    pid: int
    uid: int


def hello_of(packet: bytes) -> Hello:
    """The caller's first message. Raises BadMessage."""
    try:
        told = json.loads(packet)
        kind = Kind(told["kind"])
        if kind is not Kind.HELLO or told["version"] != VERSION:
            raise BadMessage(f"{kind.value} in version {told['version']}; version {VERSION} is spoken here")
        gpu, job = checked_gpu(told["gpu"]), told["job"]
        if not isinstance(job, str) or len(job) > LONGEST_JOB or not job.isprintable():
            raise BadMessage(f"the job's name has more than {LONGEST_JOB} characters, or odd ones")
        consent = told["consent"]
        if (
            not isinstance(consent, list)
            or len(consent) > 256
            or not all(type(uid) is int for uid in consent)
        ):
            raise BadMessage("consent is no list of up to 256 user ids")
        return Hello(gpu, Role(told["role"]), job, frozenset(consent))
    except BadMessage:
        raise
    except (ValueError, KeyError, TypeError, WrongVariable, RecursionError) as error:
        raise BadMessage(f"no message of this protocol: {error!r}"[:200]) from error


@dataclass(frozen=True, slots=True)
class Eviction:
    """The request to end the opportunistic jobs on a GPU at once. It is answered when they are gone."""

    gpu: str

    def encoded(self) -> bytes:
        """The packet."""
        return json.dumps({"kind": Kind.EVICT.value, "version": VERSION, "gpu": self.gpu}).encode()


def eviction_of(packet: bytes) -> Eviction | None:
    """The request in a caller's first message; None if it is another message."""
    try:
        told = json.loads(packet)
        asks = told["kind"] == Kind.EVICT.value and told["version"] == VERSION
        return Eviction(checked_gpu(told["gpu"])) if asks else None
    except (ValueError, KeyError, TypeError, WrongVariable, RecursionError):
        return None


def told_of(packet: bytes) -> Told:
    """What the coordinator says. Raises BadMessage."""
    try:
        told = json.loads(packet)
        return Told(Kind(told["kind"]), str(told["reason"]), int(told["pid"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"no message of a coordinator: {error!r}") from error


def listen(folder: Path) -> socket.socket:
    """The coordinator's socket in `folder`. A socket that a killed coordinator left is replaced."""
    path = folder / SOCKET
    if _answers(path):
        raise NoCoordinator(
            f"{path}: another coordinator serves this folder. End it, or use another --folder"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    beside = folder / f".{SOCKET}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    listener.bind(str(beside))
    beside.chmod(0o666)  # every user may call; the kernel says who it is
    listener.listen(64)
    listener.setblocking(False)
    beside.replace(path)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(str(path))
        except OSError:
            return False
        return True


def connect(folder: Path, timeout_s: float = 2.0) -> socket.socket:
    """A connection to the coordinator of `folder`. Raises NoCoordinator with the reason.

    A coordinator is trusted if it runs as root, as this user, or as the owner of the folder.
    """
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(timeout_s)
    try:
        owner = _owner(folder)
        caller.connect(str(folder / SOCKET))
        if (uid := peer(caller).uid) not in (0, os.getuid(), owner):
            raise NoCoordinator(f"{folder}: the coordinator runs as user {uid}, who does not own the folder")
    except OSError as error:
        caller.close()
        if isinstance(error, NoCoordinator):
            raise
        raise NoCoordinator(f"{folder / SOCKET}: {error.strerror or error}") from error
    return caller


def _owner(folder: Path) -> int:
    found = folder.stat()
    if found.st_mode & stat.S_IWOTH:
        raise NoCoordinator(f"{folder}: every user may write there, so anybody could pose as the coordinator")
    return found.st_uid


def peer(connection: socket.socket) -> Caller:
    """Who is at the other end when the connection was made."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Caller(pid, uid)


def send(connection: socket.socket, packet: bytes, *descriptors: int) -> None:
    """Send one packet, with descriptors of pages. Raises OSError."""
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    connection.sendmsg([packet], ancillary)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, which the caller owns now. An empty packet: the other end is gone.

    Raises OSError, and BadMessage for a packet that is too long or has too many descriptors.
    """
    space = socket.CMSG_SPACE(MOST_DESCRIPTORS * struct.calcsize("i"))
    packet, ancillary, flags, _ = connection.recvmsg(MOST_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for each in descriptors:
            os.close(each)
        raise BadMessage(f"a packet of more than {MOST_BYTES} bytes or {MOST_DESCRIPTORS} descriptors")
    return packet, list(descriptors)
