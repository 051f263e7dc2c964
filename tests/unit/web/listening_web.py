"""A flexo-web that really listens, by TCP and for a proxy: with sockets, the kernel's word, and uvicorn."""

from __future__ import annotations

import http.client
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from flexod_double import FlexodDouble, SayingWho, client_of, serving
from signed_in import URL, until

from flexo_web import process
from flexo_web.app import Site
from flexo_web.proxy_socket import Proxy
from flexo_web.refusals import RefusalLog

HEADER = "X-Remote-User"
JOB = "/jobs/17"
OWN = os.getuid()


@dataclass
class Served:
    """A flexo-web that listens by TCP and for a proxy."""

    port: int
    path: Path
    refusals: list[str] = field(default_factory=list)

    def by_tcp(self, **headers: str) -> tuple[int, str]:
        """Status and text of an answer to somebody on the network."""
        return _answer(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30), headers.items())

    def by_proxy(self, *names: str, header: str = HEADER, **others: str) -> tuple[int, str]:
        """Status and text of an answer to this process at the proxy's socket, with a header for each name."""
        return self._through([*((header, name) for name in names), *others.items()])

    def form_by_proxy(self, name: str, **fields: str) -> tuple[int, str]:
        """Status and text of the answer to a form of the job's page, sent for `name`."""
        return self._through([(HEADER, name), ("Origin", URL)], JOB, urlencode(fields))

    def _through(
        self, headers: Iterable[tuple[str, str]], path: str = "/", form: str | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("proxy", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        connection.sock.connect(str(self.path))
        return _answer(connection, headers, path, form)

    def token(self, name: str) -> str:
        """The token of the form on the job's page, as `name` sees it."""
        found = re.search(r'name="token" value="(\w+)"', self._through([(HEADER, name)], JOB)[1])
        return found[1] if found else ""


def _answer(
    connection: http.client.HTTPConnection,
    headers: Iterable[tuple[str, str]],
    path: str = "/",
    form: str | None = None,
) -> tuple[int, str]:
    connection.putrequest("GET" if form is None else "POST", path, skip_host=True)
    for name, value in [("Host", "127.0.0.1:6837"), *headers]:
        connection.putheader(name, value)
    if form is not None:
        connection.putheader("Content-Type", "application/x-www-form-urlencoded")
        connection.putheader("Content-Length", str(len(form)))
    connection.endheaders(None if form is None else form.encode())
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@contextmanager
def web_server(
    folder: Path, proxy_uid: int | None = OWN, flexod: FlexodDouble | None = None
) -> Iterator[Served]:
    """A running flexo-web. `proxy_uid` None: no proxy is trusted."""
    path, refused = folder / "proxy.socket", []
    proxy = None if proxy_uid is None else Proxy(path, proxy_uid, HEADER)
    log = RefusalLog(refused.append)
    with serving(flexod or FlexodDouble()) as address, ExitStack() as sockets:
        site = Site(lambda: client_of(address), SayingWho(), URL, proxy.header if proxy else "", log)
        server = uvicorn.Server(process._server(site, proxy, log))
        made = [sockets.enter_context(each) for each in process._sockets("127.0.0.1", 0, proxy)]
        thread = threading.Thread(target=server.run, args=(made,))
        thread.start()
        try:
            until(lambda: server.started)
            yield Served(made[0].getsockname()[1], path, refused)
        finally:
            server.should_exit = True
            thread.join(30)
