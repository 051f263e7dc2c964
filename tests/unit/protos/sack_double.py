"""The kiosk of Slurm's auth/slurm at the process boundary: a Unix socket that makes and verifies tokens.

Written after what Slurm's own daemons answer (tests/slurm/matrix/test_without_munge.py has the real ones). It
signs and verifies with the standard library alone, and shares no code with what it is a double of.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY = b"the cluster's key, of 32 bytes.."
UID, GID = 61_000, 61_001
CREATE, VERIFY = 64001, 64002


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signature(signed: str, key: bytes) -> str:
    return encoded(hmac.new(key, signed.encode(), hashlib.sha256).digest())


def token(payload: bytes | None, key: bytes = KEY, alg: str = "HS256", **changes: object) -> str:
    """A token as the kiosk makes it, but for `changes`; None leaves a claim out."""
    now = int(time.time())
    claims: dict[str, object] = {
        "iat": now, "exp": now + 60, "ver": 10752, "ruid": 0xFFFFFFFF, "context": "sack", "cluster": "lab",
        "uid": UID, "gid": GID, "host": "t1",
        "payload": None if payload is None else base64.b64encode(payload).decode(),
    }  # fmt: skip
    said = {name: value for name, value in {**claims, **changes}.items() if value is not None}
    header = encoded(json.dumps({"alg": alg, "typ": "JWT"}).encode())
    signed = f"{header}.{encoded(json.dumps(said).encode())}"
    return f"{signed}.{signature(signed, key) if alg == 'HS256' else encoded(b'none')}"


class Kiosk(socketserver.ThreadingUnixStreamServer):
    """Answers one question a connection. It remembers the questions."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.questions: list[bytes] = []
        self.answer: bytes | None = None
        """Given to every question instead of a right answer; None: the right answer is given."""
        super().__init__(path, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: Kiosk

    def handle(self) -> None:
        header = self.rfile.read(6)
        length = struct.unpack("!HI", header)[1]
        body = self.rfile.read(length - 4)
        self.server.questions.append(header + body)
        if self.server.answer is not None:
            self.wfile.write(self.server.answer)
            return
        (question,) = struct.unpack("!I", body[:4])
        if question == CREATE:
            _, size = struct.unpack("!II", body[4:12])
            made = token(body[12 : 12 + size]).encode() + b"\0"
            self.wfile.write(struct.pack("!I", len(made)) + made)
        elif question == VERIFY and _is_good(body[8:].rstrip(b"\0").decode()):
            self.wfile.write(struct.pack("!I", 0))


def _is_good(text: str) -> bool:
    signed, _, said = text.rpartition(".")
    claims = json.loads(base64.urlsafe_b64decode(signed.split(".")[1] + "=="))
    own = base64.urlsafe_b64decode(signature(signed, KEY) + "=")
    return hmac.compare_digest(base64.urlsafe_b64decode(said + "="), own) and claims["exp"] >= time.time()


@contextmanager
def kiosk(folder: Path) -> Iterator[Kiosk]:
    """A kiosk at the socket `sack` in `folder`."""
    with Kiosk(str(folder / "sack")) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()
