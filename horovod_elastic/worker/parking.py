"""Parks the state of training in the base of an opportunistic job, and reads the parked state back.

The base of such a job has no workers, so it keeps the state while nobody trains. Rank 0 parks the state at
the boundary at which training pauses. It also parks a copy from time to time while it trains, because all
workers may be lost at once. The training thread only makes the copy. A thread sends it, so that the copy is
the only one in this worker's memory.

A parked state is what a worker with the state gives to a newcomer: the messages of state_messages.py, each
after its name and its length. They go through the agent of this node to the leader's agent, in the base.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import grpc
import torch

from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import threads
from horovod_elastic.trace import say
from horovod_elastic.wire import PIECE_BYTES
from horovod_elastic.worker.state_messages import Carry

if TYPE_CHECKING:
    from horovod_elastic.worker.session import Session

VARIABLE = "FLEXO_OPPORTUNISTIC"
"""Variable that the agent sets: "1" if the job is opportunistic."""
INTERVAL_VARIABLE = "FLEXO_PARK_INTERVAL_S"
"""Environment variable: shortest time between two copies while the job trains, in seconds."""
DEFAULT_INTERVAL_S = 10.0
COST = 0.01
"""The part of the training time that copies may take."""
TRIES_FOR_S = 60.0
"""Longest time for which a worker tries again while its agent or the leader is away."""
PAUSE_S = 0.5
_PIECES_AHEAD = 8
_REFUSALS = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED
"""The answers after which another try would not help."""
_FRAME = struct.Struct("<HQ")
"""Before each message: the length of its name, and its own length."""

Write = Callable[[Carry], None]
"""A function that sends the state through a Carry."""


class NotParked(RuntimeError):
    """The state was not parked, or the parked state cannot be read."""


def of_job(session: Session) -> Parking | None:
    """The parking of this worker's state; None if the job is not opportunistic."""
    return Parking(session) if os.environ.get(VARIABLE) == "1" else None


class Parking:
    """See the module. The training thread calls all methods."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._interval_s = float(os.environ.get(INTERVAL_VARIABLE) or DEFAULT_INTERVAL_S)
        self._due_at = 0.0
        self._sending = False
        self._said = ""
        """The last failure that the user was told of."""

    def due(self) -> bool:
        """Whether this worker is to park a copy at this boundary."""
        return self._session.rank == 0 and not self._sending and time.monotonic() >= self._due_at

    def copy(self, head: pb.ParkedHead, write: Write) -> None:
        """Copy the state into this machine's memory, and send the copy in a thread."""
        began, copies = time.monotonic(), list[tuple[str, torch.Tensor]]()

        def keep(message: torch.Tensor, name: str) -> Callable[[], object]:
            copies.append((name, message.clone()))
            return _done

        write(keep)
        took_s = time.monotonic() - began
        self._due_at = began + took_s + max(self._interval_s, took_s / COST)
        self._sending = True
        copies.reverse()

        def send() -> None:
            pieces = _pieces(head, (copies.pop() for _ in range(len(copies))))
            try:
                self._session.park(pieces)
            finally:
                copies.clear()
                self._sending = False

        threads.start(send, name="flexo-park", failed=self._failed)

    def _failed(self, error: Exception) -> None:
        """Go on with the state that was parked before; the next copy is a new try."""
        text = _text(error)
        if text != self._said:
            self._said = text
            say(f"the state of training was not parked in the base, which keeps the one before: {text}")

    def now(self, head: pb.ParkedHead, write: Write) -> None:
        """Park the state, and wait until the base keeps it. If that fails, the base keeps the state before.

        This worker is about to leave, so nothing is copied.
        """
        deadline = time.monotonic() + TRIES_FOR_S
        while True:
            try:
                self._stream(head, write)
                return
            except (NotParked, grpc.RpcError) as error:
                refused = isinstance(error, grpc.Call) and error.code() in _REFUSALS
                if refused or time.monotonic() > deadline:
                    self._failed(error)
                    return
            time.sleep(PAUSE_S)

    def _stream(self, head: pb.ParkedHead, write: Write) -> None:
        pieces: queue.Queue[pb.ParkedPiece | None] = queue.Queue(_PIECES_AHEAD)
        call = self._session.begin_to_park(iter(pieces.get, None))

        def put(piece: pb.ParkedPiece | None) -> None:
            while not call.done():
                try:
                    pieces.put(piece, timeout=PAUSE_S)
                except queue.Full:
                    continue
                return
            raise NotParked("the base does not take the state")

        def carry(message: torch.Tensor, name: str) -> Callable[[], object]:
            for piece in _framed(name, message):
                put(piece)
            return _done

        try:
            put(pb.ParkedPiece(head=head))
            write(carry)
            put(pb.ParkedPiece(whole=True))
            put(None)
        except BaseException:
            if call.done():
                call.result()  # its error says more
            call.cancel()
            raise
        finally:
            with contextlib.suppress(queue.Full):
                pieces.put_nowait(None)  # ends the thread that reads the pieces
        call.result()

    def fetch(self) -> ParkedState:
        """The state that the base keeps. Raises NotParked."""
        deadline = time.monotonic() + TRIES_FOR_S
        while True:
            try:
                return ParkedState(self._session.fetch_parked())
            except (NotParked, grpc.RpcError) as error:
                if time.monotonic() > deadline:
                    raise NotParked(f"the parked state cannot be fetched: {_text(error)}") from error
            time.sleep(PAUSE_S)


class ParkedState:
    """A parked state on its way from the base. `head`: what it is."""

    def __init__(self, stream: Iterable[pb.ParkedPiece]) -> None:
        """Raises NotParked, and grpc.RpcError."""
        self._stream = iter(stream)
        first = next(self._stream, None)
        if first is None or not first.HasField("head"):
            raise NotParked("the base keeps no state")
        self.head = first.head
        self._rest = memoryview(b"")

    def carry(self, message: torch.Tensor, name: str) -> Callable[[], object]:
        """Read the next message (see state_messages.Carry). Raises NotParked."""
        length, size = _FRAME.unpack(self._read(_FRAME.size))
        known = self._read(length).decode()
        if (known, size) != (name, message.numel()):
            raise NotParked(f"the parked state has {known} of {size} bytes, and not {name}")
        self._read_into(memoryview(message.numpy()))
        return _done

    def _read(self, size: int) -> bytearray:
        into = bytearray(size)
        self._read_into(memoryview(into))
        return into

    def _read_into(self, into: memoryview) -> None:
        filled = 0
        while filled < len(into):
            if not self._rest:
                self._rest = self._next()
            some = self._rest[: len(into) - filled]
            into[filled : filled + len(some)] = some
            filled, self._rest = filled + len(some), self._rest[len(some) :]

    def _next(self) -> memoryview:
        try:
            piece = next(self._stream, None)
        except grpc.RpcError as error:
            raise NotParked(f"the parked state has stopped coming: {_text(error)}") from error
        if piece is None or not piece.HasField("content"):
            raise NotParked("the parked state is shorter than it should be")
        return memoryview(piece.content)


def _pieces(head: pb.ParkedHead, messages: Iterable[tuple[str, torch.Tensor]]) -> Iterator[pb.ParkedPiece]:
    yield pb.ParkedPiece(head=head)
    for name, message in messages:
        yield from _framed(name, message)
    yield pb.ParkedPiece(whole=True)


def _framed(name: str, message: torch.Tensor) -> Iterator[pb.ParkedPiece]:
    """A message (flat, uint8, in memory) in pieces, after its name and length."""
    title = name.encode()
    yield pb.ParkedPiece(content=_FRAME.pack(len(title), message.numel()) + title)
    content = memoryview(message.numpy())
    for start in range(0, len(content), PIECE_BYTES):
        yield pb.ParkedPiece(content=bytes(content[start : start + PIECE_BYTES]))


def _done() -> None:
    """Do nothing: the message was carried when its carrying began."""


def _text(error: object) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)
