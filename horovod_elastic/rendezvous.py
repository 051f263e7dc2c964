"""The HTTP key-value store at which Horovod's native core meets: one server a generation.

The core (gloo_context.cc, http_store.cc) asks `/rank_and_size/<host>:<local rank>` after a reset and then
exchanges addresses under `/<scope>/<key>`. A server of its own for every generation means that a straggler of
the old one cannot write into the new one. It listens on the job's own address only, takes small values only,
never unpickles anything, and its socket is closed with it (stock Horovod: all interfaces, cloudpickle, left
open).
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RANK_SCOPE = "rank_and_size"
MAX_VALUE_BYTES = 64 * 1024
MAX_KEYS = 100_000
REQUEST_TIMEOUT_S = 10.0


class Rendezvous:
    """A running server. `ranks` maps "<host>:<local rank>" to the line that the core parses."""

    def __init__(self, address: str, ranks: Mapping[str, str]) -> None:
        self._server = _Server((address, 0), _Handler)
        self._server.ranks = {key: line.encode("ascii") for key, line in ranks.items()}
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="rendezvous", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop and close the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.ranks: dict[str, bytes] = {}
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the host's name, which may take a DNS timeout each generation."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a worker that was killed in the middle of a request is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        scope, _, key = self.path.lstrip("/").partition("/")
        if scope == RANK_SCOPE:
            value = self.server.ranks.get(key)
        else:
            with self.server.lock:
                value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_VALUE_BYTES:
            self._answer(413)
            return
        value = self.rfile.read(int(length))
        with self.server.lock:
            full = len(self.server.values) >= MAX_KEYS
            if not full:
                self.server.values[self.path] = value
        self._answer(507 if full else 200)

    def do_DELETE(self) -> None:
        # The core says with this that a rank has connected; the server goes with its generation anyway.
        self._answer(200)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: one line for every key of every rank helps nobody."""
