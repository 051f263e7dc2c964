"""flexo-web over real HTTP and gRPC, on flexod's double: for what no lab on one machine is large enough."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import uvicorn
from flexod_double import FlexodDouble, SayingWho, client_of, serving

from flexo_protos.web_login import purpose
from flexo_web.app import Site

_WITHIN_S = 30.0


@dataclass(frozen=True)
class Served:
    """A flexo-web that listens."""

    url: str
    flexod: FlexodDouble
    reports: Path

    def link(self, uid: int = 0) -> str:
        """A one-time link of the user `uid`."""
        headers = {"flexo-munge": f"{uid} {purpose(self.url)}"}
        answer = httpx2.post(f"{self.url}/links", headers=headers, trust_env=False)
        return str(answer.json()["link"])


@contextmanager
def served(prepare: Callable[[FlexodDouble], None]) -> Iterator[Served]:
    """A flexo-web until the end of the context. `prepare`: what flexod is to say from the beginning on."""
    with socket.socket() as listening, TemporaryDirectory() as folder:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        flexod = FlexodDouble()
        prepare(flexod)
        with serving(flexod) as address:
            site = Site(lambda: client_of(address), SayingWho(), url, reports=Path(folder))
            server = uvicorn.Server(
                uvicorn.Config(site.app(), log_level="warning", timeout_graceful_shutdown=1)
            )
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            try:
                until(lambda: server.started)
                yield Served(url, flexod, Path(folder))
            finally:
                server.should_exit = True
                thread.join(_WITHIN_S)


def until(holds: Callable[[], object], within_s: float = _WITHIN_S) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
