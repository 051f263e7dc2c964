"""Credentials from Slurm's own kiosk (sack), for clusters that run auth/slurm and no MUNGE.

slurmd, sackd and slurmctld listen at a Unix socket. Whoever asks there gets a JSON Web Token (HS256), signed
with the cluster's key. It names the asker's uid, by the kernel's word, and a text of the asker's. Whoever
shows a token there hears whether its signature is right and whether it has expired. So no process of flexo's
needs the key, and flexod stays an ordinary account: who has the key can be any user, also root.

flexo adds what the kiosk lacks. The text names flexo, the method that is called, and a random number. A
verifier takes a token once, within a minute. It refuses what was made for something else before it asks.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from flexo_protos.credentials import LIFETIME_S, Caller, NotAuthentic
from flexo_protos.used_once import UsedOnce

SOCKET_VARIABLE: Final = "SLURM_SACK_SOCKET"
"""Slurm's own environment variable: the kiosk's socket, if not one of Slurm's defaults."""
SOCKETS: Final = ("/run/slurm/sack.socket", "/run/slurmctld/sack.socket", "/run/slurmdbd/sack.socket")
"""Where Slurm's own commands look, one after the other."""
_VERSION: Final = 41 << 8
"""The version of Slurm's protocol in each question: that of 24.05, where the questions are as here."""
_CREATE, _VERIFY = 64001, 64002
_HEADER: Final = struct.Struct("!HII")
_COUNT: Final = struct.Struct("!I")
_COUNTED_IN_LENGTH: Final = _HEADER.size - 2
"""The length counts itself and what follows, but not the version."""
_ANYBODY: Final = 0xFFFFFFFF
"""The uid of a token that everybody may have verified."""
_LARGEST_UID: Final = 0xFFFFFFFD
_MOST_BYTES: Final = 16_384
_WITHIN_S: Final = 5.0
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_PAYLOAD: Final = re.compile(rb"flexo ([0-9a-f]{32}) (.{1,4096})", re.DOTALL)
_NO_USER: Final = "the credential names no user, or no time"
_USED: Final = UsedOnce()
"""Of this process: a token that one of its servers took is refused by all."""


@dataclass(frozen=True, slots=True)
class _Claims:
    """What a token says. Nothing of it counts before the kiosk has verified the token."""

    uid: int
    gid: int
    issued_at: int
    number: str
    method: str


class Sack:
    """Authenticator over Slurm's kiosk. `path`: its socket; None: $SLURM_SACK_SOCKET, or Slurm's defaults."""

    def __init__(
        self, path: str | None = None, clock: Callable[[], float] = time.time, used: UsedOnce = _USED
    ) -> None:
        named = path or os.environ.get(SOCKET_VARIABLE)
        self._paths = (named,) if named else SOCKETS
        self._clock = clock
        self._used = used

    def credential(self, method: str) -> str:
        """See Authenticator."""
        payload = f"flexo {secrets.token_hex(16)} {method}".encode()
        answer = self._ask(_CREATE, _COUNT.pack(_ANYBODY) + _counted(payload))
        token = answer[_COUNT.size :].rstrip(b"\0").decode("ascii", "replace")
        if len(answer) < _COUNT.size or not _TOKEN.fullmatch(token):
            raise NotAuthentic("Slurm's sack gave no token: slurmd's or sackd's log says why")
        return token

    def verify(self, credential: str, method: str) -> Caller:
        """See Authenticator."""
        claims = _claims(credential)
        if claims.method != method:
            raise NotAuthentic(f"the credential was not made for {method}")
        now = self._clock()
        if abs(now - claims.issued_at) > LIFETIME_S:
            raise NotAuthentic("the credential has expired, or clocks differ by more than a minute")
        answer = self._ask(_VERIFY, _counted(credential.encode("ascii") + b"\0"))
        if answer != _COUNT.pack(0):
            raise NotAuthentic("Slurm's sack refused the credential: signed with another key, or expired")
        until = claims.issued_at + LIFETIME_S + 1
        if not self._used.take(claims.uid, claims.number, until, now):
            raise NotAuthentic("the credential was used before, or its user has used too many in a minute")
        return Caller(claims.uid, claims.gid)

    def _ask(self, question: int, rest: bytes) -> bytes:
        """The kiosk's whole answer; b"" if it hangs up without one. Raises NotAuthentic."""
        header = _HEADER.pack(_VERSION, _COUNTED_IN_LENGTH + len(rest), question)
        try:
            with self._connected() as connection:
                connection.sendall(header + rest)
                answer = b""
                while len(answer) <= _MOST_BYTES and (more := connection.recv(_MOST_BYTES)):
                    answer += more
                return answer
        except OSError as error:
            raise NotAuthentic(f"Slurm's sack does not answer: {error}") from error

    def _connected(self) -> socket.socket:
        """A connection to the first socket that takes one. Raises OSError."""
        failed: list[str] = []
        for path in self._paths:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_WITHIN_S)
            try:
                connection.connect(path)
            except OSError as error:
                connection.close()
                failed.append(f"{path}: {error.strerror or error}")
                continue
            return connection
        raise OSError("; ".join(failed))


def _counted(data: bytes) -> bytes:
    return _COUNT.pack(len(data)) + data


def _claims(token: str) -> _Claims:
    """The claims of a token of flexo's that a user's process has asked for. Raises NotAuthentic."""
    if len(token) > _MOST_BYTES or not _TOKEN.fullmatch(token):
        raise NotAuthentic("the credential is no token of Slurm's sack")
    header, said, _ = token.split(".")
    if _object(header).get("alg") != "HS256":
        raise NotAuthentic("the credential is signed otherwise than by HS256, which Slurm alone uses")
    claims = _object(said)
    if claims.get("context") != "sack":
        raise NotAuthentic("the credential was made for Slurm itself, and not at its sack")
    payload = _PAYLOAD.fullmatch(_decoded(claims.get("payload"), base64.b64decode))
    if payload is None:
        raise NotAuthentic("the credential was made for another program")
    uid, gid, issued_at = (_number(claims.get(name)) for name in ("uid", "gid", "iat"))
    if max(uid, gid) > _LARGEST_UID:
        raise NotAuthentic(_NO_USER)
    return _Claims(uid, gid, issued_at, payload[1].decode(), payload[2].decode("utf-8", "replace"))


def _number(value: object) -> int:
    """`value`, if it is a number from 0. Raises NotAuthentic."""
    if type(value) is not int or value < 0:
        raise NotAuthentic(_NO_USER)
    return value


def _object(part: str) -> dict[str, Any]:
    """The JSON object in one part of a token. Raises NotAuthentic."""
    text = _decoded(part + "=" * (-len(part) % 4), base64.urlsafe_b64decode)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotAuthentic("the credential is no token of Slurm's sack")
    return found


def _decoded(text: object, decode: Callable[[str], bytes]) -> bytes:
    if not isinstance(text, str):
        return b""
    try:
        return decode(text)
    except (binascii.Error, ValueError):
        return b""
