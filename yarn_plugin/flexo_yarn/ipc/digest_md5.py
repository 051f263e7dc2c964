"""The client's side of SASL's mechanism DIGEST-MD5 (RFC 2831): it proves a password and protects messages.

Connections of ApplicationMasters always authenticate with it, on clusters with Kerberos too. The quality of
protection (hadoop.rpc.protection) is "auth" (no protection), "auth-int" (each message is signed) or
"auth-conf" (each message is encrypted too, with RC4).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from flexo_yarn.ipc.protection import AUTH, CONFIDENTIALITY, QUALITIES, Protection

_CIPHER = "rc4"
_MAC_BYTES = 10
_VERSION = b"\0\1"
_NUMBER = struct.Struct(">I")
_NO_BODY = ":" + "0" * 32
"""What A2 ends with if messages are protected (RFC 2831, section 2.1.2.1)."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """What the server wants to be proved."""

    realm: str
    nonce: str
    quality: str
    ciphers: tuple[str, ...]


def read_challenge(text: bytes) -> Challenge:
    """The challenge in the server's words. Raises ValueError if this client cannot meet it."""
    fields = {
        name: value.strip('"')
        for name, value in re.findall(r'([\w-]+)=("[^"]*"|[^,]*)', text.decode("utf-8", "replace"))
    }
    if "nonce" not in fields:
        raise ValueError("a challenge without a nonce")
    offered = fields.get("qop", AUTH).split(",")
    quality = next((each.strip() for each in offered if each.strip() in QUALITIES), None)
    ciphers = tuple(each.strip() for each in fields.get("cipher", "").split(",") if each.strip())
    if quality is None:
        raise ValueError(f"hadoop.rpc.protection offers {fields['qop']}; allowed: {', '.join(QUALITIES)}")
    if quality == CONFIDENTIALITY and _CIPHER not in ciphers:
        raise ValueError(f"auth-conf with the ciphers {', '.join(ciphers) or 'none'}; allowed: {_CIPHER}")
    return Challenge(fields.get("realm", ""), fields["nonce"], quality, ciphers)


class DigestMd5:
    """The proof that this client knows a user's password, for one connection."""

    def __init__(
        self, challenge: Challenge, user: str, password: str, service: str, cnonce: str = ""
    ) -> None:
        """`service`: "PROTOCOL/SERVER ID" as the server names itself. `cnonce`: random if empty."""
        self._challenge = challenge
        self._user = user
        self._service = service
        self._cnonce = cnonce or base64.b64encode(os.urandom(18)).decode()
        known = _md5(f"{user}:{challenge.realm}:{password}".encode())
        self._a1 = _md5(known + f":{challenge.nonce}:{self._cnonce}".encode())

    def response(self) -> bytes:
        """What proves the password to the server."""
        challenge = self._challenge
        fields = {
            "charset": "utf-8",
            "username": f'"{self._user}"',
            "realm": f'"{challenge.realm}"',
            "nonce": f'"{challenge.nonce}"',
            "nc": "00000001",
            "cnonce": f'"{self._cnonce}"',
            "digest-uri": f'"{self._service}"',
            "response": self._digest("AUTHENTICATE"),
            "qop": challenge.quality,
        }
        if challenge.quality == CONFIDENTIALITY:
            fields["cipher"] = f'"{_CIPHER}"'
        return ",".join(f"{name}={value}" for name, value in fields.items()).encode()

    def is_proved_by(self, answer: bytes) -> bool:
        """Whether the server's last answer proves that it knows the password too."""
        return hmac.compare_digest(answer, f"rspauth={self._digest('')}".encode())

    def protection(self) -> Protection | None:
        """What protects the messages from now on; None: nothing does ("auth")."""
        if self._challenge.quality == AUTH:
            return None
        return signed(self._a1, confidential=self._challenge.quality == CONFIDENTIALITY)

    def _digest(self, method: str) -> str:
        """The response of RFC 2831, section 2.1.2.1, with A2 for this method."""
        challenge = self._challenge
        a2 = f"{method}:{self._service}{'' if challenge.quality == AUTH else _NO_BODY}"
        proof = f"{self._a1.hex()}:{challenge.nonce}:00000001:{self._cnonce}:{challenge.quality}:"
        return _md5(f"{proof}{_md5(a2.encode()).hex()}".encode()).hex()


def signed(a1: bytes, *, confidential: bool, client: bool = True) -> Protection:
    """Messages with a signature and a number; encrypted too if `confidential` (RFC 2831, sections 2.3, 2.4).

    `a1`: the hash of A1. `client`: which end of the connection this is.
    """
    ways = ("client-to-server", "server-to-client")
    sent, received = ways if client else ways[::-1]

    def signs(way: str) -> bytes:
        return _md5(a1 + f"Digest session key to {way} signing key magic constant".encode())

    def seals(way: str) -> Callable[[bytes], bytes]:
        if not confidential:
            return bytes
        return _Rc4(_md5(a1 + f"Digest H(A1) to {way} sealing key magic constant".encode())).apply

    return _Signed(signs(sent), signs(received), seals(sent), seals(received))


class _Signed:
    """See `signed`."""

    def __init__(
        self, sign: bytes, check: bytes, seal: Callable[[bytes], bytes], unseal: Callable[[bytes], bytes]
    ) -> None:
        self._sign, self._check, self._seal, self._unseal = sign, check, seal, unseal
        self._sent = self._received = 0

    def wrap(self, message: bytes) -> bytes:
        """See Protection.wrap."""
        number = _NUMBER.pack(self._sent)
        self._sent += 1
        return self._seal(message + _mac(self._sign, number + message)) + _VERSION + number

    def unwrap(self, protected: bytes) -> bytes:
        """See Protection.unwrap."""
        number = _NUMBER.pack(self._received)
        self._received += 1
        if len(protected) < _MAC_BYTES + 6 or protected[-6:] != _VERSION + number:
            raise ValueError("a protected message out of order")
        plain = self._unseal(protected[:-6])
        message, mac = plain[:-_MAC_BYTES], plain[-_MAC_BYTES:]
        if not hmac.compare_digest(_mac(self._check, number + message), mac):
            raise ValueError("a protected message that was changed on its way")
        return message


class _Rc4:
    """The cipher RC4: the same object enciphers, or deciphers, one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        state, j = list(range(256)), 0
        for i in range(256):
            j = (j + state[i] + key[i % len(key)]) & 255
            state[i], state[j] = state[j], state[i]
        self._state, self._i, self._j = state, 0, 0

    def apply(self, data: bytes) -> bytes:
        state, i, j = self._state, self._i, self._j
        out = bytearray(len(data))
        for at, byte in enumerate(data):
            i = (i + 1) & 255
            j = (j + state[i]) & 255
            state[i], state[j] = state[j], state[i]
            out[at] = byte ^ state[(state[i] + state[j]) & 255]
        self._i, self._j = i, j
        return bytes(out)


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "md5")[:_MAC_BYTES]


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=True).digest()
