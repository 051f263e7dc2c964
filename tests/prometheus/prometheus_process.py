"""One Prometheus on this machine that scrapes one small exporter; both end with their contexts."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

START_WITHIN_S = 60.0
_CONFIGURATION = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: inference
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


class Exporter:
    """What an inference cluster tells Prometheus: `samples`, in its text format."""

    def __init__(self) -> None:
        self.samples: dict[str, float] = {}
        self.scrapes = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.scrapes += 1
                body = "".join(f"{name} {value}\n" for name, value in exporter.samples.items()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def port(self) -> int:
        return int(self.server.server_port)


@contextmanager
def exporting() -> Iterator[Exporter]:
    exporter = Exporter()
    thread = threading.Thread(target=exporter.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield exporter
    finally:
        exporter.server.shutdown()
        thread.join()
        exporter.server.server_close()


@dataclass
class Prometheus:
    """A running server. `url` is its address."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, or start it again with the data that it had, and wait until it is ready."""
        options = [
            f"--config.file={self.home / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.home / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(["prometheus", *options], stdout=log, stderr=log)
        deadline = time.monotonic() + START_WITHIN_S
        while not self._ready():
            log_end = (self.home / "log").read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, f"prometheus has ended:\n{log_end}"
            assert time.monotonic() < deadline, f"prometheus does not start:\n{log_end}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/-/ready", timeout=5) as answer:
                return int(answer.status) == 200
        except OSError:
            return False


@contextmanager
def running(home: Path, exporter: Exporter) -> Iterator[Prometheus]:
    """A fresh Prometheus with its files in `home`."""
    (home / "prometheus.yml").write_text(_CONFIGURATION.format(port=exporter.port))
    prometheus = Prometheus(home, _a_port())
    try:
        prometheus.start()
        yield prometheus
    finally:
        prometheus.stop()


def _a_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
