"""Credentials by a secret that all processes of one job share, for clusters without MUNGE.

Inside the job, a caller proves that it has the secret with a keyed hash of the method, the time and a random
number. flexod does not have it: the cluster's own list of jobs names its SHA-256 (`fingerprint`) beside the
user who submitted the job. So flexod is shown the secret itself, over TLS only (`shown`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flexo_protos import tls
from flexo_protos.credentials import LIFETIME_S, Authenticator, Caller, NotAuthentic
from flexo_protos.used_once import UsedOnce

FILE_VARIABLE: Final = "FLEXO_SECRET_FILE"
"""Environment variable: the file with the job's secret, which its user alone can read."""
SECRET_BYTES: Final = 32
_CREDENTIAL = re.compile(r"(\d{1,12}) ([0-9a-f]{32}) ([0-9a-f]{64})")
SHOWN: Final = "secret "
_OWN_HOST = re.compile(r"(127(\.\d+){3}|localhost|\[::1\]):")
"""Addresses of this host itself."""


def fingerprint(secret: bytes) -> str:
    """The SHA-256 of a job's secret in hexadecimal, by which the cluster names its owner."""
    return hashlib.sha256(secret).hexdigest()


def fingerprint_of(credential: str) -> str:
    """The fingerprint of the secret in a credential for flexod. Raises NotAuthentic."""
    text = credential.removeprefix(SHOWN)
    if text == credential or re.fullmatch(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}", text) is None:
        raise NotAuthentic("the credential shows no job's secret")
    return fingerprint(bytes.fromhex(text))


class JobSecret:
    """Authenticator inside one job, between processes that have `secret`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._used = UsedOnce()

    @classmethod
    def from_file(cls) -> JobSecret:
        """The secret in the file that $FLEXO_SECRET_FILE names. Raises NotAuthentic."""
        path = os.environ.get(FILE_VARIABLE, "")
        try:
            secret = bytes.fromhex(Path(path).read_text().strip()) if path else b""
        except (OSError, ValueError) as error:
            raise NotAuthentic(f"the job's secret cannot be read (${FILE_VARIABLE}): {error}") from error
        if len(secret) != SECRET_BYTES:
            raise NotAuthentic(f"${FILE_VARIABLE} names no job's secret, which has {SECRET_BYTES} bytes")
        return cls(secret)

    @property
    def shown(self) -> Authenticator:
        """The same job's credentials for flexod."""
        return _Shown(self._secret)

    def credential(self, method: str) -> str:
        """See Authenticator."""
        at, number = str(int(time.time())), secrets.token_hex(16)
        return f"{at} {number} {self._hash(method, at, number)}"

    def verify(self, credential: str, method: str) -> Caller:
        """See Authenticator. The caller is this process's own user."""
        match = _CREDENTIAL.fullmatch(credential)
        if match is None:
            raise NotAuthentic("the call carries no credential of this job")
        at, number, digest = match.groups()
        if not hmac.compare_digest(digest, self._hash(method, at, number)):
            raise NotAuthentic(f"the credential was not made for {method} by a process of this job")
        now = time.time()
        if abs(now - int(at)) > LIFETIME_S:
            raise NotAuthentic("the credential has expired, or clocks differ by more than a minute")
        if not self._used.take("the job", number, int(at) + LIFETIME_S + 1, now):
            raise NotAuthentic("the credential was used before, or too many were in a minute")
        return Caller(os.getuid(), os.getgid())

    def _hash(self, *words: str) -> str:
        return hmac.new(self._secret, "\n".join(words).encode(), hashlib.sha256).hexdigest()


class _Shown:
    """Authenticator of a job's leader for its calls of flexod."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def credential(self, method: str) -> str:
        """See Authenticator. It is the same for all methods: what it is worth is known to flexod alone."""
        return f"{SHOWN}{self._secret.hex()}"

    def verify(self, credential: str, method: str) -> Caller:
        """Nobody shows a job another secret. Raises NotAuthentic."""
        raise NotAuthentic("a job does not verify what is shown to flexod")


def for_flexod(authenticator: Authenticator, hosts: Iterable[str]) -> Authenticator:
    """What proves to flexod at `hosts` (host:port) who calls, where `authenticator` proves it inside the job.

    Raises NotAuthentic if a secret would travel between hosts without TLS.
    """
    if not isinstance(authenticator, JobSecret):
        return authenticator
    far = next((host for host in hosts if not _OWN_HOST.match(host)), None)
    if far is not None and tls.authority() is None:
        raise NotAuthentic(
            f"flexod at {far} is called without TLS, and the job's secret is shown over TLS only: "
            f"set [tls] ca in flexo.toml, or ${tls.VARIABLE}"
        )
    return authenticator.shown
