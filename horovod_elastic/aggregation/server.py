"""An Aggregator's doors: a socket of the node for its workers, a TCP port for the other nodes' Aggregators.

Whoever connects says within a few seconds who it is, with the Aggregator's token. Then its connection belongs
to one generation's session, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time

from horovod_elastic import sockets
from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind
from horovod_elastic.aggregation.plan import NEW, Hello, Role, from_bytes
from horovod_elastic.aggregation.session import Session
from horovod_elastic.trace import say

HELLO_WITHIN_S = 5.0
MOST_STRANGERS = 64
"""Limit of connections at a door that have not said yet who they are. One more, and the oldest is closed."""
PAUSE_S = 0.05
"""Seconds until a door that has no descriptor left for a connection tries again."""


class Server:
    """The Aggregator of one node of one job."""

    def __init__(self, path: str, host: str, port: int, token: str) -> None:
        """`path`: of the socket for workers. `port`: 0 for any. Raises OSError if one is taken."""
        self._host = host
        self._token = token
        self._local = socket.socket(socket.AF_UNIX)
        self._local.bind(path)
        self._local.listen(256)
        self._tcp = socket.create_server((host, port), backlog=256)
        self.port = int(self._tcp.getsockname()[1])
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}
        self._last_over = -1
        """The latest generation that is over. Nobody is let into it again, nor into an earlier one."""

    def serve(self) -> None:
        """Serve for ever."""
        threading.Thread(target=self._accept, args=(self._tcp, True), daemon=True).start()
        self._accept(self._local, False)

    def _accept(self, door: socket.socket, is_tcp: bool) -> None:
        strangers = _Strangers()
        while True:
            try:
                connection, _ = door.accept()
                if is_tcp:
                    sockets.watch(connection)
            except OSError:  # no descriptor is left, or the connection is closed already
                time.sleep(PAUSE_S)
                continue
            strangers.come(connection)
            threading.Thread(target=self._meet, args=(connection, strangers), daemon=True).start()

    def _meet(self, connection: socket.socket, strangers: _Strangers) -> None:
        try:
            try:
                connection.settimeout(HELLO_WITHIN_S)
                hello = self._hello(connection)
                connection.settimeout(None)
            finally:
                strangers.go(connection)
            self._serve(connection, hello)
        except BadFrame as error:
            say(f"the Aggregator closes a connection: {error}")
            with contextlib.suppress(OSError):
                frames.send(connection, Frame(Kind.FAILED), (str(error).encode(errors="replace"),))
        except (OSError, EOFError):
            pass
        finally:
            sockets.close(connection)

    def _hello(self, connection: socket.socket) -> Hello:
        frame = frames.receive(connection)
        if frame.kind is not Kind.HELLO:
            raise BadFrame(f"{frame.kind.name} before HELLO")
        hello = from_bytes(frames.receive_text(connection, frame))
        if not hmac.compare_digest(hello.token.encode(errors="replace"), self._token.encode()):
            raise BadFrame("the token is not this Aggregator's")
        return hello

    def _serve(self, connection: socket.socket, hello: Hello) -> None:
        if hello.role is Role.WORKER and connection.family != socket.AF_UNIX:
            raise BadFrame("a worker has to come by the socket of its node")
        session = self._enter(hello)
        try:
            if hello.role is Role.WORKER:
                session.serve_worker(connection, hello)
            else:
                session.serve_node(connection, hello)
        finally:
            self._leave(session)

    def _enter(self, hello: Hello) -> Session:
        """The session of the hello's generation. One that is over is there again for a node that was away.

        Such a node may not have heard that this node's workers are gone, and hears it from the new session.
        """
        plan, own = hello.plan, hello.to
        with self._lock:
            session = self._sessions.get(plan.generation)
            if session is None:
                comes_back = hello.role is Role.NODE and hello.keys != NEW
                if plan.generation <= self._last_over and not comes_back:
                    raise BadFrame(f"generation {plan.generation} is over")
                session = self._sessions[plan.generation] = Session(plan, own, self._host)
            elif (session.plan, session.own) != (plan, own):
                raise BadFrame(f"generation {plan.generation} has another plan")
            session.connections += 1
            return session

    def _leave(self, session: Session) -> None:
        """End a session that is over, or whose connections have all ended before all workers came."""
        with self._lock:
            session.connections -= 1
            generation, is_over = session.plan.generation, session.is_over()
            if (session.connections and not is_over) or self._sessions.get(generation) is not session:
                return
            del self._sessions[generation]
            if is_over:
                self._last_over = max(self._last_over, generation)
        session.close()


class _Strangers:
    """The connections at a door that have not said yet who they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[socket.socket, None] = {}

    def come(self, connection: socket.socket) -> None:
        """One more. Whoever means well has said who it is long before it is the oldest of so many."""
        with self._lock:
            if len(self._here) >= MOST_STRANGERS:
                oldest = next(iter(self._here))
                del self._here[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._here[connection] = None

    def go(self, connection: socket.socket) -> None:
        """This one has said who it is, or is closed."""
        with self._lock:
            self._here.pop(connection, None)
