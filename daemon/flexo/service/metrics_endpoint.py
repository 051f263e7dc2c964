"""Serves flexod's metrics to Prometheus, over plain HTTP.

Each request has a thread and a limit of seconds in all. The number of requests has a limit, too: one more
ends the oldest. So a slow client does not hold up other readers. Pages are made one after the other, so that
a flood costs flexod no more than one thread. prometheus_client's own server has none of these limits.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from flexo.service import vital
from flexo.service.server import AddressUnusable, host_and_port

WITHIN_S: Final = 10.0
"""The longest time from a connection's beginning to its end: asking, and reading the answer."""
_AT_A_TIME: Final = 16
"""The most connections. One more ends the oldest."""
_LOOK_S: Final = 0.1

_log = structlog.get_logger("flexo.service")


class _Handler(WSGIRequestHandler):
    timeout = WITHIN_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: reading metrics is no news."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        self._open: dict[socket.socket, float] = {}
        """The open connections, each with the time since when, the oldest first."""
        self._lock = threading.Lock()
        super().__init__((str(address[0]), int(address[1])), _Handler)

    def server_bind(self) -> None:
        """Bind the socket, without the question to DNS for this host's name that HTTPServer asks."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own. If there are too many connections, end the oldest."""
        with self._lock:
            self._open[request] = time.monotonic()
            if len(self._open) > _AT_A_TIME:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _break(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that take too long, byte by byte or not at all. The server calls this again and
        again."""
        oldest = time.monotonic() - WITHIN_S
        with self._lock:
            for connection, since in self._open.items():
                if since < oldest:
                    _break(connection)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection before its descriptor may mean another one."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error at level debug: a reader that has gone is no news."""
        _log.debug(
            "a reader of metrics was not answered", reader=str(client_address), why=repr(sys.exc_info()[1])
        )


def _break(connection: socket.socket) -> None:
    """Shut a connection down. Its thread notices that and closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def metrics_served(address: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serve `registry` at `address`, ``host:port``, while the context lasts; "": nowhere.

    Raises AddressUnusable.
    """
    if not address:
        yield
        return
    with _bound(address) as server:
        make, one_at_a_time = make_wsgi_app(registry), threading.Lock()

        def page(environ: Any, start_response: Any) -> Any:
            with one_at_a_time:
                return make(environ, start_response)

        server.set_app(page)
        vital.start("metrics", lambda: server.serve_forever(_LOOK_S))
        _log.info(f"metrics can be read at http://{address}/metrics")
        try:
            yield
        finally:
            server.shutdown()


def _bound(address: str) -> WSGIServer:
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, endpoint = found[0]
        return _Server(family, endpoint)
    except OSError as error:
        text = f"cannot serve metrics on {address} ([metrics] listen): {error.strerror or error}"
        raise AddressUnusable(text) from error
