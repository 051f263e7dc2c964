"""Defines the status of GPU sharing on one node, and the file in which the coordinator writes it."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from horovod_elastic.sharing.environment import Role

FILE = "status.json"
VERSION = 1
MOST_BYTES = 1 << 20
"""A larger file is none of ours."""


class NoStatus(RuntimeError):
    """There is no status: no coordinator has run here, or its file is not readable."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process that shares, or waits for, a GPU. `memory`: bytes that its layer counts. Speeds are
    measured.

    `moved_out`: bytes of its live tensors that are in the host's memory now. `steps`: since it joined.
    `peak`: the most bytes that a guarantee job has held; 0 for others.
    """

    role: Role
    job: str
    pid: int
    uid: int
    steps: int
    memory: int
    moved_out: int = 0
    stale: bool = False
    peak: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bytes for memory, fractions from 0 to 1 for the rest.

    `utilization`: the share of time in which the GPU worked. `guarantee_slowdown`: how much longer a
    step of the guarantee job takes than with the gate closed; None before that is measured.
    `opportunistic_share`: the share of the last seconds in which the opportunistic job worked; None
    without one. `gate`: closed, gaps or open. `limit`: bytes that the opportunistic job may hold.
    `waiting`: candidates, in their order. `pretended`: whether the device exists by declaration only.
    """

    name: str
    device: str
    pretended: bool
    memory_total: int
    memory_used: int
    utilization: float
    gate: str
    reason: str
    limit: int
    guarantee: Member | None = None
    opportunistic: Member | None = None
    waiting: tuple[Member, ...] = ()
    guarantee_slowdown: float | None = None
    opportunistic_share: float | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of one node. `updated_at`: seconds since the epoch, by the node's clock."""

    node: str
    pid: int
    updated_at: float
    gpus: tuple[Gpu, ...]

    def gpu(self, name: str) -> Gpu | None:
        """The GPU of this name; None if the coordinator has none."""
        return next((gpu for gpu in self.gpus if gpu.name == name), None)


def read(folder: Path) -> NodeStatus:
    """The status that the coordinator of `folder` wrote last. Raises NoStatus with the reason."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NoStatus(
            f"{path}: {error.strerror}. Start one with `flexo share coordinator`, or name its folder"
        ) from error
    if len(content) > MOST_BYTES:
        raise NoStatus(f"{path} has more than {MOST_BYTES} bytes: it is no status of a coordinator")
    return parse(content)


def parse(content: bytes) -> NodeStatus:
    """The status in the bytes of a status file. Raises NoStatus if they are none."""
    try:
        told: dict[str, Any] = json.loads(content)
        if (version := told["version"]) != VERSION:
            raise NoStatus(f"the status has version {version}; this flexo reads version {VERSION}")
        gpus = tuple(_gpu(each) for each in told["gpus"])
        return NodeStatus(str(told["node"]), int(told["pid"]), float(told["updated_at"]), gpus)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoStatus(f"the status file is not readable: {error!r}") from error


def write(status: NodeStatus, folder: Path) -> None:
    """Replace the status file as a whole: a reader sees the former status or this one, never a part."""
    descriptor, path = tempfile.mkstemp(dir=folder, prefix=".status-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content_of(status))
        Path(path).chmod(0o644)
        Path(path).replace(folder / FILE)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def content_of(status: NodeStatus) -> bytes:
    """The bytes of the status file."""
    told = {"version": VERSION, **asdict(status)}
    return json.dumps(told, default=_word_of_role, indent=1).encode()


def _word_of_role(value: object) -> str:
    if isinstance(value, Role):
        return value.value
    raise TypeError(f"{value!r} has no place in a status")


def _gpu(told: dict[str, Any]) -> Gpu:
    return Gpu(
        name=str(told["name"]),
        device=str(told["device"]),
        pretended=bool(told["pretended"]),
        memory_total=int(told["memory_total"]),
        memory_used=int(told["memory_used"]),
        utilization=float(told["utilization"]),
        gate=str(told["gate"]),
        reason=str(told["reason"]),
        limit=int(told["limit"]),
        guarantee=_member(told["guarantee"]),
        opportunistic=_member(told["opportunistic"]),
        waiting=tuple(filter(None, map(_member, told["waiting"]))),
        guarantee_slowdown=_fraction(told["guarantee_slowdown"]),
        opportunistic_share=_fraction(told["opportunistic_share"]),
    )


def _member(told: dict[str, Any] | None) -> Member | None:
    if told is None:
        return None
    return Member(
        role=Role(told["role"]),
        job=str(told["job"]),
        pid=int(told["pid"]),
        uid=int(told["uid"]),
        steps=int(told["steps"]),
        memory=int(told["memory"]),
        moved_out=int(told["moved_out"]),
        stale=bool(told["stale"]),
        peak=int(told.get("peak", 0)),
    )


def _fraction(told: float | None) -> float | None:
    return None if told is None else float(told)
