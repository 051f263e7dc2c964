"""An Aggregator's doors: a socket of the node for its workers, a TCP port for the other nodes' Aggregators.

Whoever connects says within a few seconds who it is, with the Aggregator's token. Then its connection belongs
to one generation's session, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from typing import NamedTuple

from horovod_elastic import sockets
from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.control import AggregatorUsage, Assignment
from horovod_elastic.aggregation.doors import Door, Guest
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind
from horovod_elastic.aggregation.meter import JobMeter, JobUse
from horovod_elastic.aggregation.plan import NEW, Hello, Plan, Role, fields_of, hello_of
from horovod_elastic.aggregation.session import Session
from horovod_elastic.aggregation.turns import FairTurns
from horovod_elastic.trace import say

HELLO_WITHIN_S = 5.0
MOST_STRANGERS = 64
"""Limit of connections at a door that have not said yet who they are. One more, and the oldest is closed."""
MOST_REMEMBERED = 64
MOST_SESSIONS = 16
"""Limit of the sessions of one job at an Aggregator without workers: of generations, and of assignments."""
MOST_CONNECTIONS = 512
"""Limit of the connections of one job at an Aggregator without workers: each takes two threads. A job has one
for each of its nodes, and twice as many between two generations."""
PAUSE_S = 0.05
"""Seconds until a door that has no descriptor or thread left for a connection tries again."""


class Server:
    """An Aggregator: of one node of one job, or of a pool."""

    def __init__(self, path: str, host: str, port: int, door: Door) -> None:
        """`path`: of the socket for workers; "": no workers are here, as at a pool's Aggregator, or at one in
        a satellite of the job. `port`: 0 for any.

        Raises OSError if one is taken.
        """
        self._host = host
        self._door = door
        self._local: socket.socket | None = None
        if path:
            self._local = socket.socket(socket.AF_UNIX)
            self._local.bind(path)
            self._local.listen(256)
        self._tcp = socket.create_server((host, port), backlog=256)
        self.port = int(self._tcp.getsockname()[1])
        self._lock = threading.Lock()
        self._sessions: dict[_Name, Session] = {}
        self._over: deque[_Name] = deque(maxlen=MOST_REMEMBERED)
        """The latest generations that are over. Nobody is let into them again."""
        self._complained_at = 0.0
        self._turns = FairTurns()
        self._meters: dict[str, JobMeter] = {}

    def serve(self) -> None:
        """Serve for ever."""
        if self._local is not None:
            threading.Thread(target=self._accept, args=(self._local, False), daemon=True).start()
        self._accept(self._tcp, True)

    def used(self) -> dict[str, JobUse]:
        """What each job uses that is connected with a pool's Aggregator. The longest waits begin anew."""
        with self._lock:
            return {job: meter.look() for job, meter in self._meters.items()}

    @property
    def moved(self) -> int:
        """Bytes that the jobs of a pool's Aggregator have pushed and pulled: every summand comes, and its sum
        goes back."""
        return 2 * self._turns.served

    def usage(self) -> AggregatorUsage | None:
        """What the latest generation's sums are, at a node's own Aggregator; None before the first."""
        with self._lock:
            latest = max(self._sessions, key=lambda name: name.generation, default=None)
            return None if latest is None else self._sessions[latest].usage()

    def assigned(self, made: Assignment) -> None:
        """Have the sums at a node's own Aggregator migrate to this assignment."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.assigned(made)

    def evict(self, job: str) -> None:
        """End all sums of a job. Its door has to be closed before."""
        with self._lock:
            ended = [session for name, session in self._sessions.items() if name.job == job]
        for session in ended:
            session.close()

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
            try:
                threading.Thread(target=self._meet, args=(connection, strangers), daemon=True).start()
            except RuntimeError:  # no thread is left; this one has to go on, or nobody is heard ever again
                strangers.go(connection)
                sockets.close(connection)
                time.sleep(PAUSE_S)

    def _meet(self, connection: socket.socket, strangers: _Strangers) -> None:
        try:
            try:
                connection.settimeout(HELLO_WITHIN_S)
                hello, guest = self._hello(connection)
                connection.settimeout(None)
            finally:
                strangers.go(connection)
            self._serve(connection, hello, guest)
        except BadFrame as error:
            self._complain(f"the Aggregator closes a connection: {error}")
            with contextlib.suppress(OSError):
                frames.send(connection, Frame(Kind.FAILED), (str(error).encode(errors="replace"),))
        except (OSError, EOFError):
            pass
        finally:
            sockets.close(connection)

    def _complain(self, what: str) -> None:
        """Say what is wrong with a connection; once a second, however many come."""
        with self._lock:
            now = time.monotonic()
            says = now > self._complained_at + 1.0
            if says:
                self._complained_at = now
        if says:
            say(what)

    def _hello(self, connection: socket.socket) -> tuple[Hello, Guest]:
        frame = frames.receive(connection)
        if frame.kind is not Kind.HELLO:
            raise BadFrame(f"{frame.kind.name} before HELLO")
        said = fields_of(frames.receive_text(connection, frame))
        guest = self._door.admit(str(said.get("token", "")))  # a stranger's plan may be large
        return hello_of(said), guest

    def _serve(self, connection: socket.socket, hello: Hello, guest: Guest) -> None:
        if hello.role is Role.WORKER and connection.family != socket.AF_UNIX:
            raise BadFrame("a worker has to come by the socket of its node")
        if (self._local is None) != (not hello.plan.nodes[hello.to].ranks):
            raise BadFrame("an Aggregator without workers sums for others only, and a node's own for its own")
        version = hello.plan.version if self._local is None else 0
        name = _Name(guest.job, hello.plan.job, hello.plan.generation, version)
        session = self._enter(name, hello, guest.quota)
        try:
            if self._local is not None:
                session.migrate(hello.plan)  # that node or worker has heard of it before
            if hello.role is Role.WORKER:
                session.serve_worker(connection, hello)
            else:
                session.serve_node(connection, hello)
        finally:
            self._leave(name, session)

    def _enter(self, name: _Name, hello: Hello, quota: int) -> Session:
        """The session of the hello's generation. One that is over is there again for a node that was away.

        Such a node may not have heard that this node's workers are gone, and hears it from the new session.
        """
        plan, own = hello.plan, hello.to
        with self._lock:
            if self._local is None:
                self._check_connections(name.job)
            session = self._sessions.get(name)
            if session is None:
                comes_back = hello.role is Role.NODE and hello.keys != NEW
                if name in self._over and not comes_back:
                    raise BadFrame(f"generation {plan.generation} is over")
                if self._local is None:
                    self._check_sessions(name.job)
                session = Session(plan, own, self._host, self._meter(name.job), quota)
                self._sessions[name] = session
            elif session.own != own or not self._is_of(session, plan):
                raise BadFrame(f"generation {plan.generation} has another plan")
            session.connections += 1
            return session

    def _check_sessions(self, job: str) -> None:
        here = sum(name.job == job for name in self._sessions)
        if here >= MOST_SESSIONS:
            raise BadFrame(f"the job has {here} generations here; at most {MOST_SESSIONS} are allowed")

    def _check_connections(self, job: str) -> None:
        here = sum(session.connections for name, session in self._sessions.items() if name.job == job)
        if here >= MOST_CONNECTIONS:
            raise BadFrame(f"the job has {here} connections here; at most {MOST_CONNECTIONS} are allowed")

    def _is_of(self, session: Session, plan: Plan) -> bool:
        """Whether the session is of this plan. At a node's own Aggregator, the pool may have changed."""
        if self._local is None:
            return session.plan == plan
        return session.plan.with_pool(0, ()) == plan.with_pool(0, ())

    def _meter(self, job: str) -> JobMeter | None:
        """What counts for a job at an Aggregator without workers. A node's own Aggregator counts nothing."""
        return None if self._local is not None else self._meters.setdefault(job, JobMeter(job, self._turns))

    def _leave(self, name: _Name, session: Session) -> None:
        """End a session that is over, or whose connections have all ended before all workers came."""
        with self._lock:
            session.connections -= 1
            is_over = session.is_over()
            if (session.connections and not is_over) or self._sessions.get(name) is not session:
                return
            del self._sessions[name]
            if is_over and self._local is not None:
                self._over.append(name)
            if not any(each.job == name.job for each in self._sessions):
                self._meters.pop(name.job, None)
        session.close()


class _Name(NamedTuple):
    """What tells one generation's session from all others."""

    job: str
    """As the door knows it."""
    run: str
    """As its plan calls the job."""
    generation: int
    version: int
    """Of the assignment, at a pool's Aggregator. At a node's own, a session goes on with the next one: 0."""


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
