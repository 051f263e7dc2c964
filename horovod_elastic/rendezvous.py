"""The HTTP key-value store at which the members of a generation meet: one server for each generation.

When Horovod's native core (gloo_context.cc, http_store.cc) is initialised again, it asks
`/rank_and_size/<host>:<local rank>`. It then exchanges addresses under `/<scope>/<key>`: for n ranks up to 10
n² requests, each on a connection of its own. So a request costs four system calls here and no thread. The
native core asks for a missing key again every 10 ms. This server holds such a request, and answers it the
moment the key is put.

Before that, each member asks for `/members/<host>:<local rank>`. The server answers once all members have
asked and still wait, because the native core fails in a costly way when a member is missing.

Every generation has a server of its own, so a straggler of the old generation cannot write into the new one.
The server listens on the job's own address only, takes small values only and never unpickles anything. With a
secret path, it answers only callers who know the path. Its sockets are closed with it. (Stock Horovod's
server listens on all interfaces, uses cloudpickle and leaves its sockets open.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from horovod_elastic import threads
from horovod_elastic.trace import say_error

RANK_SCOPE = "rank_and_size"
MEMBERS_SCOPE = "members"
MAX_VALUE_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_LENGTH_DIGITS = 9
"""Most digits of a Content-Length. int() raises ValueError from 4,301 digits on, which fit the headers."""
MAX_KEYS = 100_000
MAX_OPEN = 4096
"""Most requests for missing keys that are held at a time; the core of 256 ranks needs 256."""
MAX_HALF_READ = 256
"""Most connections whose request is half read; one more closes the oldest. Members' requests come whole."""
REQUEST_TIMEOUT_S = 10.0
HOLD_S = 5.0
"""Longest time that a request is held; then 404. The core checks its own time limit only between requests."""
SWEEP_S = 0.5
NO_ROOM_REST_S = 0.1
"""Pause when no more files can be opened: a caller that waits would wake the server again at once."""


class Rendezvous:
    """A running server. `ranks` maps "<host>:<local rank>" to the line that the core parses.

    With a `secret` (letters and digits) every path begins with it, and other requests get 404. `failed`:
    called in the server's thread with an error that has ended the server. All its sockets are closed then, so
    nobody waits.
    """

    def __init__(
        self,
        address: str,
        ranks: Mapping[str, str],
        secret: str = "",
        failed: Callable[[Exception], None] = say_error,
    ) -> None:
        self._listener = socket.create_server((address, 0), backlog=1024)
        self._listener.setblocking(False)
        # A connection is accepted once its request is there, so that nearly all are read at once.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        # Connections inherit it: the largest answer is handed to the kernel in one call.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_VALUE_BYTES)
        self.port = int(self._listener.getsockname()[1])
        """The TCP port it listens on."""
        self.address = f"{address}:{self.port}/{secret}" if secret else address
        """The server's address for the core (it writes http://<address>:<port>/<scope>/<key>)."""
        prefix = f"/{secret}:{self.port}/" if secret else "/"
        self._has_spoken = False
        self._store = _Store(prefix, {key: line.encode("ascii") for key, line in ranks.items()})
        # Every descriptor that the server needs exists before anybody hears its address.
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = threads.start(self._serve, name="rendezvous", failed=failed)

    def close(self) -> None:
        """Answer 404 to callers that wait, stop, and close all sockets. A second call does nothing."""
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)
            self._thread.join()

    def _serve(self) -> None:
        reading: dict[int, _Connection] = {}
        try:
            with self._poll, self._listener:
                self._serve_until_closed(self._poll, reading)
        finally:
            self._store.let_go_of_all()
            for connection in reading.values():
                connection.socket.close()
            os.close(self._wake)

    def _serve_until_closed(self, poll: select.epoll, reading: dict[int, _Connection]) -> None:
        next_sweep = time.monotonic() + SWEEP_S
        closing = False
        while not closing:
            for descriptor, _ in poll.poll(SWEEP_S):
                if descriptor == self._wake:
                    closing = True
                elif descriptor == self._listener.fileno():
                    self._accept(poll, reading)
                elif (connection := reading.get(descriptor)) and self._read(connection):
                    poll.unregister(descriptor)
                    del reading[descriptor]
                    self._answer(connection)
            if time.monotonic() >= next_sweep:
                next_sweep = time.monotonic() + SWEEP_S
                self._store.let_go_of_old()
                drop_silent(poll, reading)

    def _accept(self, poll: select.epoll, reading: dict[int, _Connection]) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:  # none left; or gone again
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(NO_ROOM_REST_S)
                return
            accepted.setblocking(False)
            connection = _Connection(accepted, time.monotonic())
            if self._read(connection):
                self._answer(connection)
            else:
                if len(reading) >= MAX_HALF_READ:
                    oldest = next(iter(reading))
                    poll.unregister(oldest)
                    reading.pop(oldest).socket.close()
                reading[accepted.fileno()] = connection
                poll.register(accepted, select.EPOLLIN)

    def _read(self, connection: _Connection) -> bool:
        """Call _Store.read. An error in it refuses this request and affects no other."""
        try:
            return self._store.read(connection)
        except Exception as error:
            self._say_once(error)
            connection.refused = 400
            return True

    def _answer(self, connection: _Connection) -> None:
        """Call _Store.answer. An error in it closes this connection and no other."""
        try:
            self._store.answer(connection)
        except Exception as error:
            self._say_once(error)
            connection.socket.close()

    def _say_once(self, error: Exception) -> None:
        """Print the first such error only, because strangers may cause any number of them."""
        if not self._has_spoken:
            self._has_spoken = True
            say_error(error)


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    since: float
    data: bytearray = field(default_factory=bytearray)
    method: str = ""
    path: str = ""
    body_at: int = 0
    body_bytes: int = 0
    refused: int = 0
    """HTTP status of a refusal; 0: not refused. A refused request is not read to its end."""

    def has_gone(self) -> bool:
        """Whether the client that waits for an answer has hung up."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True


class _Store:
    """The stored values, and the requests that wait for missing ones."""

    def __init__(self, prefix: str, ranks: Mapping[str, bytes]) -> None:
        self._prefix = prefix
        self._ranks = ranks
        self._values: dict[str, bytes] = {}
        self._held: dict[str, list[_Connection]] = {}
        self._held_count = 0
        self._members: dict[str, _Connection] = {}
        """Connections of members that wait until all are there, by "<host>:<local rank>"."""

    def read(self, connection: _Connection) -> bool:
        """Read the bytes that have arrived. True when the request is complete, or refused."""
        try:
            received = connection.socket.recv(MAX_VALUE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            connection.refused = 400
            return True
        connection.data += received
        if not connection.body_at:
            parse_head(connection, self._prefix)
        head_is_there = connection.body_at > 0
        whole = head_is_there and len(connection.data) >= connection.body_at + connection.body_bytes
        return whole or connection.refused > 0

    def answer(self, connection: _Connection) -> None:
        """Answer a request that was read, or hold it."""
        path = connection.path.removeprefix(self._prefix)
        if connection.refused:
            _answer(connection, connection.refused)
        elif connection.method == "GET":
            self._get(connection, path)
        elif connection.method == "PUT":
            self._put(connection, path)
        else:
            # The core says with DELETE that a rank has connected; the server goes with its generation anyway.
            _answer(connection, 200 if connection.method == "DELETE" else 501)

    def _get(self, connection: _Connection, path: str) -> None:
        scope, _, key = path.partition("/")
        if scope == MEMBERS_SCOPE and key in self._ranks:
            self._meet(connection, key)
            return
        value = self._ranks.get(key) if scope == RANK_SCOPE else self._values.get(path)
        if value is not None:
            _answer(connection, 200, value)
        elif scope in (RANK_SCOPE, MEMBERS_SCOPE) or self._held_count >= MAX_OPEN:
            _answer(connection, 404)
        else:
            connection.since = time.monotonic()
            self._held.setdefault(path, []).append(connection)
            self._held_count += 1

    def _meet(self, connection: _Connection, key: str) -> None:
        connection.since = time.monotonic()
        if before := self._members.get(key):
            before.socket.close()  # it asks again, so it has given up the first time
        self._members[key] = connection
        if len(self._members) < len(self._ranks):
            return
        for gone in [key for key, waiting in self._members.items() if waiting.has_gone()]:
            self._members.pop(gone).socket.close()
        if len(self._members) == len(self._ranks):
            for waiting in self._members.values():
                _answer(waiting, 200)
            self._members.clear()

    def _put(self, connection: _Connection, path: str) -> None:
        if len(self._values) >= MAX_KEYS and path not in self._values:
            _answer(connection, 507)
            return
        value = bytes(connection.data[connection.body_at :][: connection.body_bytes])
        self._values[path] = value
        # The caller will wait for others next, so those that wait for this value are answered first.
        for waiting in self._held.pop(path, ()):
            self._held_count -= 1
            _answer(waiting, 200, value)
        _answer(connection, 200)

    def let_go_of_old(self) -> None:
        """Answer 404 to requests held for HOLD_S; their callers ask again."""
        oldest = time.monotonic() - HOLD_S
        for key in [key for key, waiting in self._members.items() if waiting.since <= oldest]:
            _answer(self._members.pop(key), 404)
        for path, held in list(self._held.items()):
            for waiting in [connection for connection in held if connection.since <= oldest]:
                held.remove(waiting)
                self._held_count -= 1
                _answer(waiting, 404)
            if not held:
                del self._held[path]

    def let_go_of_all(self) -> None:
        """Answer 404 to all callers that wait, because the server closes."""
        for waiting in self._members.values():
            _answer(waiting, 404)
        for held in self._held.values():
            for waiting in held:
                _answer(waiting, 404)
        self._held.clear()


def parse_head(connection: _Connection, prefix: str) -> None:
    """Find method, path and the body's place and length, if the whole head is there.

    Headers are read only if the path begins with `prefix`.
    """
    end = connection.data.find(b"\r\n\r\n")
    if end < 0:
        if len(connection.data) > MAX_HEADER_BYTES:
            connection.refused = 431
        return
    first, *headers = connection.data[:end].decode("latin-1").split("\r\n")
    connection.method, _, rest = first.partition(" ")
    connection.path = rest.partition(" ")[0]
    connection.body_at = end + 4
    if not connection.path.startswith(prefix):
        connection.refused = 404  # without waiting for the rest of a stranger's request
        return
    lengths = [header[15:].strip() for header in headers if header[:15].lower() == "content-length:"]
    length = lengths[0] if lengths else "0" if connection.method != "PUT" else ""
    digits = length.isascii() and length.isdecimal() and len(length) <= MAX_LENGTH_DIGITS
    if not digits or int(length) > MAX_VALUE_BYTES:
        connection.refused = 413
    else:
        connection.body_bytes = int(length)


def _answer(connection: _Connection, status: int, body: bytes = b"") -> None:
    """Answer and close. The answer fits the socket's buffer. A caller that has hung up gets no answer."""
    head = b"HTTP/1.0 %d .\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    with contextlib.suppress(OSError):
        connection.socket.send(head + body)
    connection.socket.close()


def drop_silent(poll: select.epoll, reading: dict[int, _Connection]) -> None:
    """Close connections whose request has not arrived within REQUEST_TIMEOUT_S."""
    oldest = time.monotonic() - REQUEST_TIMEOUT_S
    for descriptor, connection in list(reading.items()):
        if connection.since <= oldest:
            poll.unregister(descriptor)
            del reading[descriptor]
            connection.socket.close()
