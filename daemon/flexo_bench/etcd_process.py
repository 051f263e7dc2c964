"""One etcd on this machine, for tests and benchmarks. It has a data directory, and ends with its context."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_WITHIN_S = 30.0


@dataclass
class Etcd:
    """An etcd cluster of one member."""

    home: Path
    client_port: int
    peer_port: int
    tls: tuple[Path, Path] | None = None
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def host(self) -> str:
        """The address for clients, host:port."""
        return f"127.0.0.1:{self.client_port}"

    def start(self) -> None:
        """Start etcd, with its data of an earlier start if there are any, and wait until it answers."""
        scheme = "https" if self.tls else "http"
        clients, peers = f"{scheme}://{self.host}", f"http://127.0.0.1:{self.peer_port}"
        options = [
            *("--name", "test", "--data-dir", str(self.home / "data"), "--initial-cluster", f"test={peers}"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        ]
        if self.tls:
            options += ["--cert-file", str(self.tls[0]), "--key-file", str(self.tls[1])]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(["etcd", *options], stdout=log, stderr=log)
        self._wait()

    def stop(self) -> None:
        """Kill etcd."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def post(self, path: str, body: dict[str, object], token: str = "") -> dict[str, object]:
        """Send a request to etcd's JSON gateway. Returns the answer."""
        request = urllib.request.Request(
            f"http://{self.host}/v3/{path}",
            json.dumps(body).encode(),
            {"Authorization": token} if token else {},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return dict(json.load(answer))

    def let_in(self, user: str, password: str, *keys: str) -> None:
        """Add a user who may read and write `keys`; a key that ends with / means all keys below it."""
        self.post("auth/role/add", {"name": user})
        for key in keys:
            end = key[:-1] + chr(ord(key[-1]) + 1) if key.endswith("/") else ""
            bounds = {"key": base64.b64encode(key.encode()).decode()}
            if end:
                bounds["range_end"] = base64.b64encode(end.encode()).decode()
            self.post("auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", **bounds}})
        self.post("auth/user/add", {"name": user, "password": password})
        self.post("auth/user/grant", {"user": user, "role": user})

    def require_passwords(self) -> None:
        """Enable authentication, so that only users of etcd have access."""
        self.post("auth/user/add", {"name": "root", "password": "root"})
        self.post("auth/user/grant", {"user": "root", "role": "root"})
        self.post("auth/enable", {})

    def _wait(self) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            assert self.process is not None
            log = (self.home / "log").read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, f"etcd has ended:\n{log}"
            assert time.monotonic() < deadline, f"etcd does not start:\n{log}"
            try:
                socket.create_connection(("127.0.0.1", self.client_port), 1).close()
                if self.tls or self.post("maintenance/status", {}).get("leader"):
                    return
            except OSError:
                pass
            time.sleep(0.05)


@contextmanager
def running(home: Path, tls: tuple[Path, Path] | None = None) -> Iterator[Etcd]:
    """A fresh etcd for the context, with its files in `home`."""
    etcd = Etcd(home, *_two_ports(), tls)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()


def _two_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
