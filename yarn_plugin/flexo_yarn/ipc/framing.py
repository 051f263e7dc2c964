"""How Hadoop's IPC puts messages into bytes: each after its length, several of them in one frame."""

from __future__ import annotations

import io
import struct
from typing import TypeVar

from google.protobuf import proto
from google.protobuf.message import DecodeError, Message

LENGTH = struct.Struct(">i")
"""The length of a frame, before it."""
LONGEST_FRAME = 128 << 20
"""Bytes, Hadoop's own limit (ipc.maximum.response.length): no server makes this process hold more."""

M = TypeVar("M", bound=Message)


def frame(*messages: Message) -> bytes:
    """One frame with these messages, each after its length as a varint."""
    body = io.BytesIO()
    for message in messages:
        proto.serialize_length_prefixed(message, body)
    return LENGTH.pack(body.tell()) + body.getvalue()


class Frame:
    """The messages of a frame that was received, taken one after the other."""

    def __init__(self, body: bytes) -> None:
        self._rest = io.BytesIO(body)

    def take(self, kind: type[M]) -> M:
        """The next message. Raises ValueError if there is none, or none of this type."""
        try:
            message = proto.parse_length_prefixed(kind, self._rest)
        except (DecodeError, ValueError, EOFError) as error:
            raise ValueError(f"no {kind.DESCRIPTOR.name}: {error}") from error
        if message is None:
            raise ValueError(f"no {kind.DESCRIPTOR.name}: the frame ends before it")
        return message
