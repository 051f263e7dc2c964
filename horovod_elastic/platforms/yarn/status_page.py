"""The page that YARN links to as a job's tracking URL: what the job holds now.

Anybody who reaches the node may read it, so it says no more than YARN's own pages do.
"""

from __future__ import annotations

import html
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

REQUEST_WITHIN_S: Final = 10.0
"""A caller that has not been answered by then is hung up on."""
CALLERS: Final = 32
"""Callers at once; others are hung up on. The ApplicationMaster needs its threads and descriptors itself."""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse }} td, th {{ padding: .25rem 1rem .25rem 0; text-align: left }}
</style></head>
<body><h1>{title}</h1>
<p>{size}</p>
<table><tr><th>Part</th><th>Node</th><th>Workers</th><th>State</th></tr>{rows}</table>
<p><a href="json">The same as JSON</a></p></body></html>
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job on one node: of its base, or a satellite."""

    part: str
    node: str
    workers: int
    state: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the page shows of a job."""

    application: str
    minimum: int
    maximum: int
    parts: tuple[Part, ...]

    @property
    def workers(self) -> int:
        """Workers of all parts that run."""
        return sum(part.workers for part in self.parts if part.state == "running")


class _Server(ThreadingHTTPServer):
    """One thread for each caller, and an end to both."""

    daemon_threads = True

    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((address, 0), handler)
        self._places = threading.BoundedSemaphore(CALLERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer within the limit: a caller may send a byte now and then for ever."""
        hang_up = threading.Timer(REQUEST_WITHIN_S, partial(_hang_up, request))
        hang_up.daemon = True
        try:
            hang_up.start()
            super().process_request_thread(request, client_address)
        finally:
            hang_up.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing into the job's output."""


class StatusPage:
    """An HTTP server on a free port of `address`. `status` is called for each request, in any thread."""

    def __init__(self, address: str, status: Callable[[], JobStatus]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Answer with the page, or with JSON."""
                if self.path not in ("/", "/json"):
                    self.send_error(404)
                    return
                as_json = self.path == "/json"
                content = (as_json_text if as_json else as_page)(status()).encode()
                self.send_response(200)
                self.send_header(
                    "Content-Type", "application/json" if as_json else "text/html; charset=utf-8"
                )
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *words: Any) -> None:
                """Write nothing into the job's output."""

        self._server = _Server(address, Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, name="status-page", daemon=True).start()


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def as_json_text(status: JobStatus) -> str:
    """The status as JSON with stable keys."""
    return json.dumps({**asdict(status), "workers": status.workers}, indent=2) + "\n"


def as_page(status: JobStatus) -> str:
    """The status as a page that reloads itself."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in _cells(part)) + "</tr>"
        for part in status.parts
    )
    size = f"{status.workers} workers run; from {status.minimum} to {status.maximum}."
    return _PAGE.format(title=html.escape(status.application), size=size, rows=rows)


def _cells(part: Part) -> tuple[object, ...]:
    return part.part, part.node, part.workers, part.state
