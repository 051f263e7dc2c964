"""The aggregation client: a worker's end of its sums, which its node's Aggregator makes.

The worker writes its input of a key into memory that it shares with the Aggregator, says so, and finds the
sum in the memory for results. If the Aggregator dies, the client waits a short time for the next one, and
gives it all that is unfinished: an input stays in its memory until its sum is there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horovod_elastic import sockets
from horovod_elastic.aggregation import control, frames
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind
from horovod_elastic.aggregation.heartbeat import ANSWERS_WITHIN_S, Heartbeat
from horovod_elastic.aggregation.memory import (
    InputMemory,
    KeyShape,
    ResultMemory,
    mask_bytes,
    mask_of,
    ranks_in,
    shape_to_bytes,
)
from horovod_elastic.aggregation.plan import NEW, Hello, Plan, Role, to_bytes

AWAY_S = 1.5
"""Seconds within which an Aggregator that is gone must be back."""
PAUSE_S = 0.01


class SumsFailed(RuntimeError):
    """The sums of this generation cannot go on; the message says why."""


@dataclass(eq=False, slots=True)
class Key:
    """A key of this worker: its memory, and how far it is."""

    number: int
    shape: KeyShape
    input: InputMemory
    result: ResultMemory | None = None
    round: int = 0
    """The round that was pushed last."""
    done: int = 0
    """The round whose result is there."""
    then: Callable[[str], None] | None = None
    """Called once the round that was pushed last is there, with "", or with the reason why it will not be."""
    registered: threading.Event = field(default_factory=threading.Event)


class AggregationClient:
    """See the module. `path`: the Aggregator's socket. `failed`: called once, in the client's own thread."""

    def __init__(self, path: str, plan: Plan, rank: int, failed: Callable[[str], None]) -> None:
        self.plan = plan
        self._path = path
        self._rank = rank
        self._node = plan.node_of(rank)
        self._failed = failed
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._keys: list[Key] = []
        self._by_shape: dict[KeyShape, Key] = {}
        self._connection: socket.socket | None = None
        self._silent: list[socket.socket] = []
        """Connections to an Aggregator that has been silent for long. They stay open until a new one is
        answered: if the Aggregator goes on after all, their end would say that this worker is gone."""
        self._ready = threading.Event()
        self._over = ""
        self._closing = False
        self._gone: set[int] = set()
        self._answered = False
        """Whether the present Aggregator, or the last one, has said anything."""

    def connect(self, within_s: float, given_up: Callable[[], bool]) -> None:
        """Meet the Aggregators of all nodes. Raises SumsFailed."""
        threading.Thread(target=self._run, name="flexo-sums", daemon=True).start()
        limit = time.monotonic() + within_s
        while not self._ready.wait(0.1):
            if self._over or given_up():
                raise SumsFailed(self._over or "it was given up")
            if time.monotonic() > limit:
                raise SumsFailed("the Aggregators did not meet in time")
        if self._over:
            raise SumsFailed(self._over)

    def key(self, shape: KeyShape) -> Key:
        """The key with this name and size. All workers ask for their keys in the same order. SumsFailed."""
        with self._lock:
            if self._over:
                raise SumsFailed(self._over)
            found = self._by_shape.get(shape)
            if found is None:
                found = Key(len(self._keys), shape, InputMemory(shape))
                self._keys.append(found)
                self._by_shape[shape] = found
                connection = self._connection
            else:
                connection = None
        if connection is not None:
            with self._sending, contextlib.suppress(OSError):  # as in `_send`
                self._register(connection, found)
        found.registered.wait()
        if self._over:
            raise SumsFailed(self._over)
        return found

    def used(self) -> list[KeyShape]:
        """The keys that were summed so far, in the order in which they were asked for."""
        with self._lock:
            return [key.shape for key in self._keys if key.round]

    def expect(self, shapes: Sequence[KeyShape]) -> None:
        """Register these keys before anybody asks for them, and touch their memory. Raises SumsFailed.

        The first sum of a key waits for both otherwise. All workers expect the same, in the same order.
        """
        for shape in shapes:
            key = self.key(shape)
            key.input.touch()
            assert key.result is not None
            key.result.touch()

    def begin(self, key: Key, then: Callable[[str], None]) -> None:
        """Have the key's input summed. It must not change until the sum is there. Raises SumsFailed.

        `then`: called in the client's thread with "" once the sum is there, or with the reason for a failure.
        """
        with self._lock:
            if self._over:
                raise SumsFailed(self._over)
            key.round += 1
            key.then = then
            connection = self._connection
        if connection is not None:
            self._send(connection, Frame(Kind.PUSH, key.number, round=key.round))

    def gone(self, rank: int) -> None:
        """Tell all Aggregators that nobody is to wait for this rank any more."""
        with self._lock:
            self._gone.add(rank)  # the next Aggregator has to hear it, too
            connection = self._connection
        if connection is not None:
            with self._sending, contextlib.suppress(OSError):
                frames.send(connection, Frame(Kind.DROP), (mask_of([rank], self.plan.size),))

    def check(self) -> None:
        """Raise SumsFailed if sums cannot go on."""
        if self._over:
            raise SumsFailed(self._over)

    def contributors(self, key: Key) -> list[frozenset[int]]:
        """The ranks that contributed to the sum that is there, part by part."""
        assert key.result is not None
        parts = range(key.shape.parts(self.plan.part_bytes))
        return [ranks_in(key.result.contributors(part)) for part in parts]

    def missing(self, key: Key) -> bool:
        """Whether some rank has not contributed to the sum that is there."""
        assert key.result is not None
        whole = ((1 << self.plan.size) - 1).to_bytes(mask_bytes(self.plan.size), "little")
        parts = range(key.shape.parts(self.plan.part_bytes))
        return any(key.result.contributors(part) != whole for part in parts)

    def forget(self) -> None:
        """Close a forked process's copy of the connection: open, it would hide this process's death."""
        for connection in (self._connection, *self._silent):
            if connection is not None:
                with contextlib.suppress(OSError):
                    os.close(connection.detach())

    def close(self, *, in_order: bool) -> None:
        """Leave. Without `in_order`, the others hear that this rank is gone."""
        with self._lock:
            self._closing = True
            connection, self._connection = self._connection, None
        if connection is not None:
            if in_order:
                self._send(connection, Frame(Kind.BYE))
            sockets.close(connection)
        self._end("it was closed")

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        lost_at = time.monotonic()
        why = "it never answered"
        while not self._closing:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(AWAY_S)
                connection.connect(self._path)
                try:
                    self._meet(connection)
                finally:
                    if self._answered:
                        lost_at = time.monotonic()
            except SumsFailed as error:
                why = str(error)
                break
            except (OSError, EOFError, BadFrame) as error:
                why = f"this node's Aggregator is gone: {error}"
            finally:
                if connection not in self._silent:
                    connection.close()
            with self._lock:
                self._connection = None
            if time.monotonic() - lost_at > AWAY_S:
                break
            time.sleep(PAUSE_S)
        self._close_silent()
        if not self._closing:
            self._end(why)
            self._failed(why)

    def _meet(self, connection: socket.socket) -> None:
        """Greet an Aggregator, and hear it until the connection ends."""
        self._answered = False
        try:
            connection.settimeout(ANSWERS_WITHIN_S)  # it takes in no more than some keys before it goes on
            self._greet(connection)
            connection.settimeout(None)
            self._hear(connection)
        except TimeoutError:
            self._silent.append(connection)
            raise

    def _close_silent(self) -> None:
        while self._silent:
            self._silent.pop().close()

    def _greet(self, connection: socket.socket) -> None:
        """Introduce this worker, with all keys and what is unfinished, to an Aggregator."""
        again = self._ready.is_set()
        with self._sending:  # who begins a sum meanwhile sends its push after the key is registered
            with self._lock:
                if self._closing:
                    raise EOFError("it was closed")
                keys, gone = list(self._keys), sorted(self._gone)
                self._connection = connection
            count = len(keys) if again else NEW
            token = self.plan.nodes[self._node].token
            hello = Hello(Role.WORKER, self._rank, self._node, token, self.plan, count)
            frames.send(connection, Frame(Kind.HELLO), (to_bytes(hello),))
            if gone:
                frames.send(connection, Frame(Kind.DROP), (mask_of(gone, self.plan.size),))
            for key in keys:
                self._register(connection, key)
                if key.done < key.round:
                    frames.send(connection, Frame(Kind.PUSH, key.number, round=key.round))

    def _register(self, connection: socket.socket, key: Key) -> None:
        if self._over:
            return  # and the descriptors are closed
        fds = [key.input.fd] if key.result is None else [key.input.fd, key.result.fd]
        frames.send_with_fds(connection, Frame(Kind.REGISTER, key.number), fds, shape_to_bytes(key.shape))

    def _send(self, connection: socket.socket, frame: Frame) -> None:
        with self._sending, contextlib.suppress(OSError):  # the thread that hears notices, and sends it again
            frames.send(connection, frame)

    def _hear(self, connection: socket.socket) -> None:
        heartbeat = Heartbeat(connection, lambda: self._ask(connection))
        while True:
            heartbeat.wait()
            frame, fds = frames.receive_with_fds(connection)
            self._answered = True
            self._close_silent()
            if frame.kind is Kind.PONG:
                continue
            if frame.kind in (Kind.DONE, Kind.REGISTERED) and frame.key >= len(self._keys):
                raise BadFrame(f"{frame.kind.name} for the unknown key {frame.key}")
            if frame.kind is Kind.DONE:
                self._done(self._keys[frame.key], frame.round)
            elif frame.kind is Kind.REGISTERED and fds:
                self._has_result(self._keys[frame.key], fds[0])
            elif frame.kind is Kind.READY:
                self._ready.set()
            elif frame.kind is Kind.MIGRATE:
                self._hear_migrate(frames.receive_text(connection, frame))
            elif frame.kind is Kind.FAILED:
                raise SumsFailed(frames.receive_text(connection, frame).decode(errors="replace"))
            else:
                raise BadFrame(f"an Aggregator sends {frame.kind.name}")

    def _hear_migrate(self, text: bytes) -> None:
        """Remember who sums now: the next Aggregator of this node hears it from its workers."""
        try:
            self.plan = control.with_assignment(self.plan, control.assignment_from_text(text.decode()))
        except ValueError as error:
            raise BadFrame(str(error)) from error

    def _ask(self, connection: socket.socket) -> bool:
        self._send(connection, Frame(Kind.PING))
        return True

    def _has_result(self, key: Key, fd: int) -> None:
        if key.result is None:
            key.result = ResultMemory(key.shape, self.plan.part_bytes, self.plan.size, fd)
            key.registered.set()
        else:
            os.close(fd)  # the memory that this worker has brought itself

    def _done(self, key: Key, number: int) -> None:
        with self._lock:
            if number <= key.done or number != key.round:
                return
            key.done = number
            then, key.then = key.then, None
        if then is not None:
            then("")

    def _end(self, why: str) -> None:
        with self._lock:
            self._over = self._over or why
            keys = list(self._keys)
            waiting = [key.then for key in keys if key.then is not None]
            for key in keys:
                key.then = None
        with self._sending:
            for key in keys:
                key.input.close()
                if key.result is not None:
                    key.result.close()
        for key in keys:
            key.registered.set()
        self._ready.set()
        for then in waiting:
            then(why)
