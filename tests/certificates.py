"""An authority and the certificates that it signs, made with the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class MadeAuthority:
    """Signs in `folder`, which is there."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self.file = folder / f"{name}.pem"
        made = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "30")
        self._openssl("req", "-x509", *_KEY, *made)

    def sign(self, name: str, hosts: str = "IP:127.0.0.1,DNS:localhost", days: int = 10) -> Pair:
        """A new pair of that file name; it has expired where `days` is below 0."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        self._openssl(
            *("req", *_KEY, "-keyout", pair.key.name, "-out", f"{name}.csr", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={hosts}"),
        )
        by = ("-CA", self.file.name, "-CAkey", f"{self._name}.key", "-CAcreateserial")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", *by, "-copy_extensions", "copy"),
            *("-out", pair.certificate.name, "-days", str(days)),
        )
        pair.key.chmod(0o600)
        return pair

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self._folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
