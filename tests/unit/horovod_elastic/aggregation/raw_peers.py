"""Peers of an Aggregator that a test plays frame by frame: its node's workers, other nodes' Aggregators."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

import numpy as np

from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.frames import Frame, Kind
from horovod_elastic.aggregation.memory import InputMemory, KeyShape, ResultMemory, mask_of, shape_to_bytes
from horovod_elastic.aggregation.place import AggregatorPlace
from horovod_elastic.aggregation.plan import NEW, Hello, Plan, Role, to_bytes

WITHIN_S = 10.0


class Peer:
    """One connection, spoken frame by frame."""

    def __init__(self, connection: socket.socket, plan: Plan) -> None:
        self.connection = connection
        self.plan = plan
        connection.settimeout(WITHIN_S)

    def send(self, frame: Frame, *payload: bytes | memoryview) -> None:
        frames.send(self.connection, frame, payload)

    def hello(self, role: Role, number: int, to: int, keys: int = NEW) -> None:
        hello = Hello(role, number, to, self.plan.nodes[to].token, self.plan, keys)
        self.send(Frame(Kind.HELLO), to_bytes(hello))

    def next(self) -> tuple[Frame, bytes]:
        frame = frames.receive(self.connection)
        payload = bytearray(frame.size)
        frames.fill(self.connection, memoryview(payload))
        return frame, bytes(payload)

    def until(self, kind: Kind) -> tuple[Frame, bytes]:
        """The next frame of this kind. Others are left out."""
        while True:
            frame, payload = self.next()
            if frame.kind is kind:
                return frame, payload

    def silent(self, kind: Kind, seconds: float = 0.3) -> bool:
        """Whether no frame of this kind comes within some time."""
        limit = time.monotonic() + seconds
        try:
            while (left := limit - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if self.next()[0].kind is kind:
                    return False
        except TimeoutError:
            pass
        finally:
            self.connection.settimeout(WITHIN_S)
        return True

    def closed(self) -> bool:
        """Whether the other end closes the connection in time."""
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def register(self, key: int, shape: KeyShape) -> None:
        self.send(Frame(Kind.REGISTER, key), shape_to_bytes(shape))

    def push(self, key: int, part: int, number: int, ranks: Sequence[int], numbers: np.ndarray) -> None:
        self._with_numbers(Kind.PUSH, key, part, number, ranks, numbers)

    def result(self, key: int, part: int, number: int, ranks: Sequence[int], numbers: np.ndarray) -> None:
        self._with_numbers(Kind.RESULT, key, part, number, ranks, numbers)

    def _with_numbers(
        self, kind: Kind, key: int, part: int, number: int, ranks: Sequence[int], numbers: np.ndarray
    ) -> None:
        self.send(Frame(kind, key, part, number), mask_of(ranks, self.plan.size), numbers.tobytes())

    def have(self, key: int, part: int, number: int) -> None:
        self.send(Frame(Kind.HAVE, key, part, number))

    def drop(self, *ranks: int) -> None:
        self.send(Frame(Kind.DROP), mask_of(ranks, self.plan.size))

    def close(self) -> None:
        self.connection.close()


class PretendedNode:
    """A node whose Aggregator a test plays. It has a port, at which the real ones find it."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(WITHIN_S)

    def place(self) -> AggregatorPlace:
        return AggregatorPlace("127.0.0.1", self._door.getsockname()[1], "the pretended node's")

    def accept(self, plan: Plan, *, ready: bool = True) -> Peer:
        """The connection that a real Aggregator makes to this one."""
        connection, _ = self._door.accept()
        peer = Peer(connection, plan)
        peer.until(Kind.HELLO)
        if ready:
            peer.send(Frame(Kind.READY))
        return peer

    def close(self) -> None:
        self._door.close()


def to_node(plan: Plan, own: int, to: int, keys: int = NEW) -> Peer:
    """A connection to node `to`, as the Aggregator of node `own`, which is heard from then on."""
    node = plan.nodes[to]
    peer = Peer(socket.create_connection((node.host, node.port), WITHIN_S), plan)
    peer.hello(Role.NODE, own, to, keys)
    return peer


class RawWorker:
    """A worker of node 0 with one key, spoken frame by frame."""

    def __init__(self, path: str, plan: Plan, rank: int, shape: KeyShape) -> None:
        self._path = path
        self._plan = plan
        self._rank = rank
        self.shape = shape
        self.input = InputMemory(shape)
        self.result: ResultMemory | None = None

    def connect(self, keys: int = NEW) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        self.peer = Peer(connection, self._plan)
        self.peer.hello(Role.WORKER, self._rank, self._plan.node_of(self._rank), keys)

    def register(self) -> None:
        fds = [self.input.fd] if self.result is None else [self.input.fd, self.result.fd]
        text = shape_to_bytes(self.shape)
        frames.send_with_fds(self.peer.connection, Frame(Kind.REGISTER, 0), fds, text)

    def registered(self) -> None:
        """Wait for the memory for results."""
        while True:
            frame, fds = frames.receive_with_fds(self.peer.connection)
            if frame.kind is Kind.REGISTERED:
                if self.result is None:
                    self.result = ResultMemory(self.shape, self._plan.part_bytes, self._plan.size, fds[0])
                else:
                    os.close(fds[0])
                return

    def push(self, number: int) -> None:
        self.peer.send(Frame(Kind.PUSH, 0, round=number))

    def done(self) -> int:
        return self.peer.until(Kind.DONE)[0].round
