"""The way from a node's Aggregator to a root, the Aggregator that sums some parts over all nodes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from horovod_elastic import sockets
from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind
from horovod_elastic.aggregation.heartbeat import Heartbeat
from horovod_elastic.aggregation.outbox import Outbox
from horovod_elastic.aggregation.plan import NEW, Hello, Plan, Role, to_bytes
from horovod_elastic.trace import say

if TYPE_CHECKING:
    from horovod_elastic.aggregation.session import Session

LEFT_OUT_AFTER_S = 0.25
"""Seconds after which a pool's Aggregator that is gone is left out. Others can take its place at once."""
AWAY_S = 1.5
"""Seconds within which a root that is gone must be back. Then the job falls back to its own all-reduce."""
PAUSE_S = 0.02
"""Seconds between two attempts to connect."""
CONNECT_S = 1.0
READY_WITHIN_S = 5.0
"""Seconds that a root may wait for its own workers, once it is there."""


class RootLink:
    """The link of `session` to one root. It connects again if the root dies."""

    def __init__(self, session: Session, root: int, plan: Plan, index: int, address: str) -> None:
        """`root`: its number in the session. `index`: its place in `plan`."""
        self._session = session
        self._root = root
        self._plan = plan
        self._index = index
        self.node = plan.nodes[index]
        self._address = address
        self._closed = threading.Event()
        self._refused = ""
        """Why the root refuses this job; "" if it does not."""
        self._connection: socket.socket | None = None
        self.outbox: Outbox | None = None
        """Where frames for the root go; None while there is no connection. Read under the session's lock."""

    def begin(self) -> None:
        """Connect, in a thread of its own."""
        name = f"flexo-root-{self._root}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """End the link: hear nothing more, and send what is waiting. Does not wait."""
        self._closed.set()
        connection, outbox = self._connection, self.outbox
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR if outbox is None else socket.SHUT_RD)
        if outbox is not None:
            outbox.end()

    def _run(self) -> None:
        node = self.node
        of_pool = not node.ranks
        lost_at = time.monotonic()
        why = "it never answered"
        while not self._closed.is_set():
            try:
                self._serve()
                if not of_pool:
                    return
                self._refused = "it has sent this job away"
            except (OSError, EOFError, ValueError) as error:
                why = str(error)
            finally:
                if self._session.forget_root(self._root):
                    lost_at = time.monotonic()
            if self._closed.is_set():
                return
            away_s = time.monotonic() - lost_at
            if of_pool and (self._refused or away_s > LEFT_OUT_AFTER_S):
                what = f"is not used any more: {self._refused}" if self._refused else f"is gone: {why}"
                say(f"the Aggregator at {node.name} {what}")
                self._session.leave_out(self._root)
                return
            if not of_pool and away_s > AWAY_S:
                self._session.fail(f"the Aggregator on {node.name} is gone: {why}")
                return
            self._closed.wait(PAUSE_S)

    def _serve(self) -> None:
        """Connect, and hear the root until it leaves. Raises EOFError, OSError, BadFrame if it breaks."""
        node, own = self.node, self._session.own
        source = (self._address, 0) if self._address else None
        connection = socket.create_connection((node.host, node.port), CONNECT_S, source)
        self._connection = connection
        try:
            if self._closed.is_set():
                return
            sockets.watch(connection)
            self._session.prepare(connection)
            connection.settimeout(READY_WITHIN_S if node.ranks else CONNECT_S)
            keys = 0 if self._session.was_met(self._root) else NEW
            told = self._session.plan if node.ranks else self._plan.told_to(self._index)
            hello = Hello(Role.NODE, own, self._index, node.token, told, keys)
            frames.send(connection, Frame(Kind.HELLO), (to_bytes(hello),))
            answer = frames.receive(connection)
            if answer.kind is not Kind.READY:
                self._refused = frames.receive_text(connection, answer).decode(errors="replace")
                raise BadFrame(f"{answer.kind.name}: {self._refused}")
            connection.settimeout(None)
            outbox = Outbox(connection, f"root-{self._root}")
            try:
                self._session.reached_root(self._root, outbox)
                self._hear(connection, outbox)
            finally:
                outbox.ended()
        finally:
            sockets.close(connection)

    def _hear(self, connection: socket.socket, outbox: Outbox) -> None:
        scratch = memoryview(bytearray(1 << 16))
        heartbeat = Heartbeat(connection, lambda: outbox.add_if_idle(Frame(Kind.PING)))
        while True:
            heartbeat.wait()
            frame = frames.receive(connection)
            if frame.kind is Kind.PONG:
                continue
            if frame.kind is Kind.RESULT:
                self._session.hear_result(connection, frame, scratch, self._root)
            elif frame.kind is Kind.FETCH:
                if (answer := self._session.fetched(frame)) is not None:
                    outbox.add(*answer)
            elif frame.kind is Kind.DROP:
                self._session.hear_drop(connection, frame)
            elif frame.kind is Kind.MET:
                self._session.all_met(self._root)
            elif frame.kind is Kind.BYE:
                return
            elif frame.kind is Kind.FAILED:
                self._refused = frames.receive_text(connection, frame).decode(errors="replace")
                raise BadFrame(self._refused)
            else:
                raise BadFrame(f"a root sends {frame.kind.name}")
