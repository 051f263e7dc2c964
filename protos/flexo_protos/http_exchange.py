"""One HTTP request with a limit on the time of the whole exchange. Redirections and proxies are not used.

It uses the standard library's HTTP client and a timer. requests and urllib3 limit the time of each read, not
of the whole answer. aiohttp limits that, but brings nine packages.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

SAFE_ADDRESS: Final = r"https://[^\s/?#@]+(/\S*)?|http://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?(/\S*)?"
"""The pattern of addresses to which secrets and users' data may go: encrypted, or to the own host."""
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `address`: with http or https, a host, and no password."""

    address: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    authorities: str | None = None
    """The file with the certificates of trusted authorities; None: the system's."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, with the first MiB of its body."""

    status: int
    reason: str
    body: bytes


def exchange(request: HttpRequest, within_s: float) -> HttpAnswer:
    """Send a request and read its answer. A server's certificate and its name are verified.

    Raises TimeoutError after `within_s` seconds, and OSError, ValueError and http.client.HTTPException.
    """
    until = time.monotonic() + within_s
    parts = urllib.parse.urlsplit(request.address)
    host, encrypted = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if encrypted else 80)
    connection = http.client.HTTPConnection(host, port)
    context = ssl.create_default_context(cafile=request.authorities) if encrypted else None
    with _connected(host, port, context, within_s) as plug, _cut_off(plug, _left_s(until)):
        if isinstance(plug, ssl.SSLSocket):
            plug.do_handshake()
        connection.sock = plug
        headers = {**request.headers, "Connection": "close"}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(request.method, path, body=request.body or None, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MAX_ANSWER_BYTES)
    _left_s(until)
    return HttpAnswer(answer.status, answer.reason, body)


def _left_s(until: float) -> float:
    """The seconds that are left. Raises TimeoutError."""
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


@contextmanager
def _connected(
    host: str, port: int, context: ssl.SSLContext | None, within_s: float
) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), within_s) as plug:
        if context is None:
            yield plug
            return
        with context.wrap_socket(plug, server_hostname=host, do_handshake_on_connect=False) as veiled:
            yield veiled


@contextmanager
def _cut_off(plug: socket.socket, after_s: float) -> Iterator[None]:
    """Close the connection after `after_s` seconds. A socket's own timeout does not suffice, because it
    begins anew with every byte."""

    def cut() -> None:
        with suppress(OSError):
            socket.socket.shutdown(plug, socket.SHUT_RDWR)

    timer = threading.Timer(after_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
