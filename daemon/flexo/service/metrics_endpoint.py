"""The address at which Prometheus reads flexod's metrics, over plain HTTP.

One request at a time, in a thread of its own: a client that is slow or floods starves other readers of
metrics and nothing else.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from flexo.service.server import AddressUnusable, host_and_port

_SILENCE_S: Final = 5.0
"""How long a client may be silent before it is hung up on."""
_STOP_S: Final = 0.1

_log = structlog.get_logger("flexo.service")


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Who reads metrics is no news."""


class _Server(WSGIServer):
    request_queue_size = 16

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), _Handler)

    def server_bind(self) -> None:
        """Without asking DNS for this host's name, as HTTPServer does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that has gone is no news."""
        _log.debug("a reader of metrics was not answered", reader=str(client_address), exc_info=True)


@contextmanager
def metrics_served(address: str, registry: CollectorRegistry) -> Iterator[None]:
    """`registry` can be read at `address`, ``host:port``, while the context lasts; nowhere for "".

    Raises AddressUnusable.
    """
    if not address:
        yield
        return
    with _bound(address) as server:
        server.set_app(make_wsgi_app(registry))
        thread = threading.Thread(target=server.serve_forever, args=(_STOP_S,), name="metrics", daemon=True)
        thread.start()
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
