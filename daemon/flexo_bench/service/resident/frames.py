"""What workers, servers and the benchmark say to each other over TCP: a header, and a body of bytes."""

from __future__ import annotations

import enum
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

_HEADER = struct.Struct("<BxxxIIIIQ")
MOST_TEXT = 1 << 16


class Kind(enum.IntEnum):
    """Kinds of frames. The paper's names are in brackets (AutoPS, appendix B)."""

    HELLO = 1
    """A worker introduces itself: the body is an Introduction."""
    INIT = 2
    """A worker gives a partition its first parameters."""
    PUSH = 3
    """A worker's gradient."""
    PARAMETERS = 4
    """The parameters after an update, for a worker [the response to Pull]. `server`: who holds them now."""
    MOVE = 5
    """The partition goes to another server [MIGRATE_INIT]. The body is a Move."""
    COPY = 6
    """A partition's parameters and momentum, for the server that holds them from now on [TENSOR_COPY]."""
    MOVED = 7
    """The copy has been sent [TENSOR_COPY_DONE]. For whoever has sent MOVE."""
    CYCLE = 8
    """The execution cycle of the server from now on. The body is a Cycle."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The header of a frame. `size`: bytes of the body.

    `job` and `key` name a partition, as job ID and tensor ID do in the paper (AutoPS, appendix A).
    """

    kind: Kind
    job: int = 0
    key: int = 0
    """The number of the partition within its job."""
    server: int = 0
    step: int = 0
    """Of PUSH: the number of the job's step, from 1 on."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a worker tells a server about itself and its job."""

    job: int
    rank: int
    ranks: int
    rate: float
    """The learning rate."""
    momentum: float
    ns_per_byte: float = 0.0
    """The time that a server's core takes for a byte of the job's gradient, at least. Nanoseconds."""
    contention: float = 1.0
    """The factor by which that time is longer on a server with several jobs in its cycle."""


@dataclass(frozen=True, slots=True)
class Move:
    """The server to which a partition goes: its number, and its address."""

    server: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Work:
    """The partitions of one job on one server. They run once in each iteration."""

    duration_ns: int
    """Of an iteration of the job, as profiled (D_j in the paper)."""
    execution_ns: int
    """The time of the server's core for all of them in one iteration."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The execution cycle of a server (C_n in the paper), and its jobs."""

    cycle_ns: int
    works: Mapping[str, Work]
    """By the number of the job, as a text."""


def dial(host: str, port: int) -> socket.socket:
    """A connection to a server, which may still be starting. Raises OSError."""
    connection = socket.create_connection((host, port))
    at_once(connection)
    return connection


def at_once(connection: socket.socket) -> None:
    """Have the connection send small frames without delay."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send(connection: socket.socket, frame: Frame, *bodies: memoryview) -> None:
    """Send a frame; its size is that of the bodies. Raises OSError."""
    size = sum(body.nbytes for body in bodies)
    connection.sendall(_HEADER.pack(frame.kind, frame.job, frame.key, frame.server, frame.step, size))
    for body in bodies:
        connection.sendall(body)


def send_words(connection: socket.socket, frame: Frame, words: Introduction | Move | Cycle) -> None:
    """Send a frame whose body is a text. Raises OSError."""
    send(connection, frame, memoryview(json.dumps(asdict(words)).encode()))


def receive(connection: socket.socket) -> Frame:
    """Receive a header. Raises OSError, or EOFError at the end; ValueError for an unknown kind."""
    header = bytearray(_HEADER.size)
    receive_into(connection, memoryview(header))
    kind, *others = _HEADER.unpack(header)
    return Frame(Kind(kind), *others)


def receive_introduction(connection: socket.socket, frame: Frame) -> Introduction:
    """Receive the body of HELLO. Raises as `receive` does, and TypeError for other fields."""
    return Introduction(**_receive_words(connection, frame))


def receive_move(connection: socket.socket, frame: Frame) -> Move:
    """Receive the body of MOVE. Raises as `receive` does, and TypeError for other fields."""
    return Move(**_receive_words(connection, frame))


def receive_cycle(connection: socket.socket, frame: Frame) -> Cycle:
    """Receive the body of CYCLE. Raises as `receive` does, and TypeError for other fields."""
    fields = _receive_words(connection, frame)
    works = {job: Work(**work) for job, work in fields["works"].items()}
    return Cycle(fields["cycle_ns"], works)


def _receive_words(connection: socket.socket, frame: Frame) -> dict[str, Any]:
    if frame.size > MOST_TEXT:
        raise ValueError(f"{frame.kind.name} with a text of {frame.size} bytes; at most {MOST_TEXT}")
    text = bytearray(frame.size)
    receive_into(connection, memoryview(text))
    fields: dict[str, Any] = json.loads(text)
    return fields


def receive_into(connection: socket.socket, memory: memoryview) -> None:
    """Fill the memory. Raises OSError, or EOFError at the end."""
    while memory:
        count = connection.recv_into(memory)
        if not count:
            raise EOFError("the connection has ended")
        memory = memory[count:]


def receive_tensor(connection: socket.socket, frame: Frame, tensor: torch.Tensor) -> None:
    """Fill the tensor with the frame's body. Raises as `receive` does, and ValueError for another size."""
    memory = memory_of(tensor)
    if frame.size != memory.nbytes:
        raise ValueError(
            f"{frame.kind.name} of job {frame.job}, partition {frame.key}: {frame.size} bytes;"
            f" allowed are {memory.nbytes}"
        )
    receive_into(connection, memory)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor, as bytes."""
    return memoryview(tensor.detach().numpy()).cast("B")
