"""The frames that aggregation clients and Aggregators exchange: a fixed header, then at most one payload.

Nothing in a frame makes its receiver allocate more than a control message's few bytes. The memory of sums is
allocated once for each key, and payloads are received into it.
"""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

HEADER = struct.Struct("<BxxxIIIQ")
MAX_CONTROL_BYTES = 1 << 20
"""Limit of a control message: a plan of 1,000 nodes has about 100 kB."""
MAX_FDS = 2


class Kind(enum.IntEnum):
    """What a frame is. "Up" goes towards the Aggregator that sums, "down" comes back."""

    HELLO = 1
    """Up, with a plan (plan.Hello): who this is, and whose sums these are."""
    READY = 2
    """Down: all members of the plan have met."""
    REGISTER = 3
    """Up, with a key's type and size (plan.KeyShape). A worker's has its memory for inputs along."""
    REGISTERED = 4
    """Down to a worker: the memory for results, as a descriptor."""
    PUSH = 5
    """Up. A worker's: the key's input is in its memory. A node's: one part of the key's sum, as payload."""
    RESULT = 6
    """Down, with one part of the sum over all nodes and who contributed. Also up, in answer to FETCH."""
    DONE = 7
    """Down to a worker: the results of all parts are in the memory for results."""
    HAVE = 8
    """Up from a node that connects again: it has the result of this part and round."""
    FETCH = 9
    """Down: send the RESULT of this part and round, which this Aggregator has lost."""
    DROP = 10
    """With a mask of ranks: they are gone, and nobody waits for what they have not pushed."""
    BYE = 11
    """Up: this end leaves in order."""
    FAILED = 12
    """Down, with a reason: the sums of this generation cannot go on."""
    LEAVE_OUT = 13
    """Up: the pool's Aggregator with the number in `key` is gone, of the assignment with the version in
    `round`. Others sum its parts."""
    PING = 14
    """Up: is the Aggregator there?"""
    PONG = 15
    """Down: it is."""
    MIGRATE = 16
    """Up from another node: an assignment (control.Assignment) to which the sums migrate. Down to a worker:
    the sums have migrated."""
    MET = 17
    """Up to a pool's Aggregator: this node has registered all its keys. Down: all nodes have."""


class Frame(NamedTuple):
    """A frame's header."""

    kind: Kind
    key: int = 0
    part: int = 0
    round: int = 0
    """How often the key has been summed in this generation, with this time; from 1 on."""
    size: int = 0
    """The payload's bytes."""


class BadFrame(ValueError):
    """A frame that nobody sends by the rules. Its connection is closed."""


def header(frame: Frame) -> bytes:
    """The header's bytes."""
    return HEADER.pack(frame.kind, frame.key, frame.part, frame.round, frame.size)


def frame_of(data: bytes | bytearray) -> Frame:
    """The frame with this header. Raises BadFrame for an unknown kind."""
    kind, key, part, number, size = HEADER.unpack(data)
    try:
        return Frame(Kind(kind), key, part, number, size)
    except ValueError:
        raise BadFrame(f"a frame of the unknown kind {kind}") from None


def fill(connection: socket.socket, memory: memoryview) -> None:
    """Receive exactly as many bytes as `memory` has. Raises EOFError at the end, OSError if broken."""
    while memory.nbytes:
        count = connection.recv_into(memory, 0, socket.MSG_WAITALL)  # one call for all packets
        if not count:
            raise EOFError("the connection was closed")
        memory = memory[count:]


def receive(connection: socket.socket) -> Frame:
    """The next frame's header. Raises EOFError, OSError, BadFrame."""
    data = bytearray(HEADER.size)
    fill(connection, memoryview(data))
    return frame_of(data)


def receive_with_fds(connection: socket.socket) -> tuple[Frame, list[int]]:
    """The next header with the descriptors that came along. Raises as `receive`."""
    data, fds, _, _ = socket.recv_fds(connection, HEADER.size, MAX_FDS)
    if not data:
        raise EOFError("the connection was closed")
    whole = bytearray(HEADER.size)
    whole[: len(data)] = data
    fill(connection, memoryview(whole)[len(data) :])
    return frame_of(whole), list(fds)


def receive_text(connection: socket.socket, frame: Frame) -> bytes:
    """The payload of a control message. Raises BadFrame if it is too long."""
    if frame.size > MAX_CONTROL_BYTES:
        raise BadFrame(f"a control message of {frame.size} bytes; at most {MAX_CONTROL_BYTES} are allowed")
    data = bytearray(frame.size)
    fill(connection, memoryview(data))
    return bytes(data)


def send(connection: socket.socket, frame: Frame, payload: Sequence[bytes | memoryview] = ()) -> None:
    """Send a frame with its payload, in one call where the connection takes it at once. Raises OSError."""
    size = sum(memoryview(each).nbytes for each in payload)
    pieces = [header(frame._replace(size=size)), *payload]
    sent = connection.sendmsg(pieces)
    for each in pieces:
        whole = memoryview(each)
        if sent < whole.nbytes:
            connection.sendall(whole[sent:])
        sent = max(0, sent - whole.nbytes)


def send_with_fds(connection: socket.socket, frame: Frame, fds: Sequence[int], text: bytes = b"") -> None:
    """Send a control message with descriptors. Raises OSError."""
    socket.send_fds(connection, [header(frame._replace(size=len(text)))], list(fds))
    if text:
        connection.sendall(text)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end, which has nothing to send yet, has closed the connection."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def drain(connection: socket.socket, size: int, scratch: memoryview) -> None:
    """Receive `size` bytes that nobody needs any more."""
    while size:
        piece = scratch[: min(size, scratch.nbytes)]
        fill(connection, piece)
        size -= piece.nbytes


Sender = Callable[[Frame, Sequence[bytes | memoryview]], None]
"""Sends a frame soon, without waiting for the network."""
