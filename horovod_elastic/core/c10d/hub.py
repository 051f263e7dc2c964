"""Rank 0's channel: it receives the requests of all ranks, decides (negotiation.py), and tells all ranks.

One thread serves the connections of the other ranks. Rank 0's own threads call the hub directly.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from flexo_protos.v1 import collectives_pb2 as pb
from horovod_elastic import sockets
from horovod_elastic.core.c10d import framing
from horovod_elastic.core.c10d.channel import Listener
from horovod_elastic.core.c10d.messages import (
    Blocked,
    Heard,
    Interned,
    NumbersOfARank,
    Step,
    WaitStep,
    as_heard,
    encode,
)
from horovod_elastic.core.c10d.negotiation import Decision, Negotiation
from horovod_elastic.trace import say

SILENCE_S = 5.0
"""Seconds without a step of any rank, while all ranks wait, after which the hub refuses all requests.

Within this time, other threads of the ranks might still make the missing requests."""
STALL_WARNING_S = 60.0
"""The default of HOROVOD_STALL_CHECK_TIME_SECONDS."""
FAREWELL_S = 2.0
"""Seconds that the hub tries to send its last messages to ranks that do not read them."""
HELLO_WITHIN_S = 10.0
"""Seconds within which a new connection must say which rank it is. Anybody on the network can connect."""
MOST_STRANGERS = 256
"""The limit of connections that have not said yet which rank they are. One more ends the oldest of them,
because a rank says so at once."""
_ACCEPTED_AT_ONCE = 64
"""The limit of connections accepted in a row. Then the hub serves the accepted connections."""


@dataclass(eq=False, slots=True)
class _Far:
    """The connection to one other rank."""

    connection: socket.socket
    numbers: NumbersOfARank
    since_s: float
    rank: int = -1
    """The rank; -1 until the connection has said which rank it is."""
    frames: framing.Frames = field(default_factory=lambda: framing.Frames(framing.MAX_HELLO_BYTES))
    unsaid: pb.ToRank = field(default_factory=pb.ToRank)
    unsent: bytearray = field(default_factory=bytearray)
    is_full: bool = False
    """Whether the kernel takes no more of `unsent` now. The poll reports when it takes more."""
    left: bool = False


class Hub:
    """The Channel of rank 0 among `size` ranks. Listens on `address` (an IP address), at `port`."""

    def __init__(
        self, address: str, size: int, token: str, negotiation: Negotiation, listener: Listener
    ) -> None:
        self.own_address = address
        self._size = size
        self._token = token
        self._negotiation = negotiation
        self._listener = listener
        self._lock = threading.RLock()
        self._far: dict[int, _Far] = {}
        """All connections, by descriptor."""
        self._ranks: dict[int, _Far] = {}
        self._interned = Interned()
        self._left = False
        self._outlives = False
        self._over = False
        self._last_word_s = self._next_beat_s = time.monotonic()
        self._stalls = _Stalls()
        self._acceptor = socket.create_server((address, 0), backlog=1024)
        self._acceptor.setblocking(False)
        self.port = int(self._acceptor.getsockname()[1])
        self._poll = select.epoll()
        self._poll.register(self._acceptor, select.EPOLLIN)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        threading.Thread(target=self._serve, name="flexo-hub", daemon=True).start()

    # --- rank 0's own part ----------------------------------------------------------------------------------

    def steps(self, steps: Sequence[Step]) -> None:
        """See Channel.steps."""
        with self._lock:
            if not self._over:
                self._program_of(0, steps)
                self._tell(self._negotiation.decide())

    def put(self, key: str, value: bytes) -> None:
        """See Channel.put."""
        with self._lock:
            if not self._over:
                self._put(pb.StoreEntry(key=key, value=value))
                self._flush()

    def leave(self) -> None:
        """See Channel.leave."""
        with self._lock:
            self._left = True
            self._leaves(0)
            if not self._over:
                self._tell(self._negotiation.decide())

    def outlive(self) -> None:
        """See Channel.outlive."""
        with self._lock:
            self._outlives = True

    def hang_up(self, why: str) -> None:
        """See Channel.hang_up."""
        self._break(why)

    def close(self) -> None:
        """See Channel.close."""
        with self._lock:
            self._over = True
            self._wake_up()

    def forget(self) -> None:
        """See Channel.forget."""
        for connection in [self._acceptor, *(far.connection for far in self._far.values())]:
            with contextlib.suppress(OSError):
                os.close(connection.detach())
        self._poll.close()
        with contextlib.suppress(OSError):
            os.close(self._wake)

    # --- what is heard --------------------------------------------------------------------------------------

    def _program_of(self, rank: int, steps: Iterable[Step]) -> None:
        now = self._last_word_s = time.monotonic()
        for step in steps:
            if isinstance(step, WaitStep):
                self._negotiation.waits(rank)
            elif isinstance(step, Blocked):
                self._negotiation.is_blocked(rank, *step.key)
            else:
                self._negotiation.asks(rank, step, now)

    def _hear(self, far: _Far, message: pb.FromRank) -> None:
        for entry in message.entries:
            self._put(entry)
        if message.steps:
            self._program_of(far.rank, far.numbers.decode(message.steps))
        if message.leaves:
            far.left = True
            self._leaves(far.rank)
        if message.hangs_up:
            self._break(message.hangs_up)

    def _greeted(self, far: _Far, hello: pb.RankHello) -> bool:
        """Accept the hello of a rank that was not here yet. Returns False for any other hello."""
        fits = hello.token == self._token and 0 < hello.rank < self._size and hello.rank not in self._ranks
        if fits:
            far.rank = hello.rank
            far.frames.most_bytes = framing.MAX_MESSAGE_BYTES
            self._ranks[hello.rank] = far
            if len(self._ranks) == self._size - 1:
                for each in self._ranks.values():
                    each.unsaid.all_here = True
                self._listener.all_here()
        return fits

    def _leaves(self, rank: int) -> None:
        self._negotiation.leaves(rank)
        if self._left and all(far.left for far in self._ranks.values()) and not self._over:
            for far in self._ranks.values():
                far.unsaid.all_left = True
            self._listener.all_left()

    # --- what is said ---------------------------------------------------------------------------------------

    def _put(self, entry: pb.StoreEntry) -> None:
        for far in self._ranks.values():
            far.unsaid.entries.append(entry)
        self._listener.entry(entry.key, entry.value)

    def _tell(self, decisions: Iterable[Decision]) -> None:
        if self._over:
            return
        for decision in decisions:
            not_asking = decision.joined | decision.gone
            if asking := [rank for rank in decision.members if rank not in not_asking]:
                self._tell_one(asking, as_heard(decision, asking[0]))
            if decision.joined:
                joined = sorted(decision.joined)
                self._tell_one(joined, as_heard(decision, joined[0]))
        self._flush()

    def _tell_one(self, ranks: Sequence[int], heard: Heard) -> None:
        encoded: dict[tuple[int, ...], pb.Collective] = {}
        for rank in ranks:
            if rank == 0:
                self._listener.heard(heard)
                continue
            far = self._ranks[rank]  # also a rank that has left
            numbers = far.numbers.numbers(heard)  # most often the same for all ranks
            if numbers not in encoded:
                encoded[numbers] = encode(heard, numbers)
            far.unsaid.collectives.append(encoded[numbers])

    def _flush(self) -> None:
        for descriptor, far in self._far.items():
            if far.unsaid.ByteSize():
                far.unsent += framing.framed(far.unsaid)
                far.unsaid = pb.ToRank()
                self._send(descriptor, far)

    def _send(self, descriptor: int, far: _Far) -> None:
        try:
            sent = far.connection.send(far.unsent) if far.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:  # the reading side notices the error, too
            return
        del far.unsent[:sent]
        if far.is_full != bool(far.unsent):
            far.is_full = not far.is_full
            with contextlib.suppress(OSError, ValueError):  # the connection, or the hub, was closed
                self._poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if far.is_full else 0))

    def _break(self, why: str) -> None:
        """Tell all ranks that the communicator is broken. A second call does nothing."""
        why = why or "it was broken"
        with self._lock:
            if self._over:
                return
            self._over = True
            for far in self._ranks.values():
                far.unsaid.broken = why
            self._flush()
            self._listener.broken(why)
            self._wake_up()

    def _wake_up(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # --- the thread -----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._over:
                self._serve_once()
        except Exception as error:  # any error: without this thread all ranks would wait for ever
            self._break(f"rank 0 failed: {error!r}")
        self._say_farewell()
        with self._lock:
            self._acceptor.close()
            for far in self._far.values():
                sockets.close(far.connection)
            self._far.clear()
            self._poll.close()
            os.close(self._wake)
            self._wake = -1

    def _serve_once(self) -> None:
        events = self._poll.poll(framing.BEAT_S)
        with self._lock:
            for descriptor, _ in events:
                if not self._over:
                    self._attend_to(descriptor)
            if not self._over:
                self._tell(self._negotiation.decide())
                self._beat()

    def _attend_to(self, descriptor: int) -> None:
        if descriptor == self._acceptor.fileno():
            self._accept()
        elif far := self._far.get(descriptor):
            self._send(descriptor, far)
            self._read(descriptor, far)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(_ACCEPTED_AT_ONCE):
                connection, _ = self._acceptor.accept()
                if len(self._far) - len(self._ranks) >= MOST_STRANGERS:
                    oldest = next(each for each, far in self._far.items() if far.rank < 0)
                    self._read(oldest, self._far[oldest])  # its hello may have arrived just now
                    if (far := self._far.get(oldest)) and far.rank < 0:
                        self._let_go(oldest, far, "")
                connection.setblocking(False)
                sockets.watch(connection)
                numbers = NumbersOfARank(self._interned)
                self._far[connection.fileno()] = _Far(connection, numbers, time.monotonic())
                self._poll.register(connection, select.EPOLLIN)

    def _read(self, descriptor: int, far: _Far) -> None:
        try:
            data = far.connection.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._let_go(descriptor, far, f"rank {far.rank} is gone")
            return
        try:
            for each in far.frames.add(data):
                if not self._understood(far, pb.FromRank.FromString(each)):
                    self._let_go(descriptor, far, "")
                    return
        except (DecodeError, ValueError, KeyError) as error:
            self._let_go(descriptor, far, f"rank {far.rank} says what cannot be understood: {error!r}")

    def _understood(self, far: _Far, message: pb.FromRank) -> bool:
        """Handle the message, if it comes from one of the ranks. Returns whether it does."""
        if far.rank < 0 and not self._greeted(far, message.hello):
            return False
        if not self._over:
            self._hear(far, message)
        return True

    def _let_go(self, descriptor: int, far: _Far, why: str) -> None:
        """Close a connection that the other end has closed, or that must end. `why`: the reason to tell."""
        with contextlib.suppress(OSError):
            self._poll.unregister(descriptor)  # a process that was just forked may hold a copy for a moment
        del self._far[descriptor]
        sockets.close(far.connection)
        if far.rank >= 0 and not far.left:
            if self._outlives and self._listener.outlives and why and not self._over:
                self._go_on_without(far)
            else:
                self._break(why)

    def _go_on_without(self, far: _Far) -> None:
        far.left = True
        self._negotiation.goes_on_without(far.rank)
        self._listener.gone(far.rank)
        if self._left and all(each.left for each in self._ranks.values()):
            self._leaves(0)

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self._next_beat_s:
            return
        self._next_beat_s = now + framing.BEAT_S
        for descriptor, far in self._far.items():
            if far.rank >= 0 and not far.unsent:
                far.unsent += framing.NOTHING
                self._send(descriptor, far)
        self._drop_silent(now)
        self._look_for_stalls(now)

    def _drop_silent(self, now: float) -> None:
        for descriptor, far in list(self._far.items()):
            if far.rank < 0 and now - far.since_s > HELLO_WITHIN_S:
                self._let_go(descriptor, far, "")

    def _look_for_stalls(self, now: float) -> None:
        if now - self._last_word_s > SILENCE_S and self._negotiation.everybody_waits():
            self._tell(self._negotiation.give_up_all())
        for name, ranks in self._negotiation.stalled(now - self._stalls.warning_s).items():
            self._stalls.warn(name, ranks)
        if self._stalls.shutdown_s:
            for name, ranks in self._negotiation.stalled(now - self._stalls.shutdown_s).items():
                why = f"{name} has waited for ranks {list(ranks)} for {self._stalls.shutdown_s:g} s."
                self._tell(self._negotiation.give_up(name, why))

    def _say_farewell(self) -> None:
        """Send the last messages that did not fit into the kernel's buffers."""
        limit = time.monotonic() + FAREWELL_S
        while any(far.unsent for far in self._far.values()) and time.monotonic() < limit:
            with self._lock:
                for descriptor, far in self._far.items():
                    self._send(descriptor, far)
            time.sleep(0.01)


class _Stalls:
    """The ages in seconds at which a request is reported and is refused, from Horovod's variables.

    `warning_s` is infinite if reports are off. `shutdown_s` is 0 if requests are never refused.
    """

    def __init__(self) -> None:
        off = os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0")
        told = _seconds("HOROVOD_STALL_CHECK_TIME_SECONDS", STALL_WARNING_S)
        self.warning_s = float("inf") if off else told
        self.shutdown_s = 0.0 if off else _seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0)
        self._warned: set[str] = set()

    def warn(self, name: str, ranks: Sequence[int]) -> None:
        """Report a request that waits for these ranks, once per name."""
        if name not in self._warned:
            self._warned.add(name)
            say(f"{name} has waited for more than {self.warning_s:g} s for ranks {list(ranks)}")


def _seconds(variable: str, otherwise: float) -> float:
    try:
        return float(os.environ.get(variable, "")) or otherwise
    except ValueError:
        return otherwise
