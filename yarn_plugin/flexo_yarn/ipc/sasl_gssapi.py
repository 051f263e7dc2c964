"""The client's side of SASL's mechanism GSSAPI (RFC 4752), by which Kerberos authenticates Hadoop's calls.

First both sides prove who they are. Then the server offers qualities of protection, and this side takes the
strongest: what both say of it is signed, so nobody can weaken it on the way.
"""

from __future__ import annotations

import struct
from typing import Final

from flexo_yarn.ipc.protection import AUTH, CONFIDENTIALITY, INTEGRITY, Protection
from flexo_yarn.kerberos import SecurityContext

_LAYERS: Final = {CONFIDENTIALITY: 4, INTEGRITY: 2, AUTH: 1}
"""The bits of the offer, strongest first."""
_OFFER = struct.Struct(">I")
"""A byte of bits, and three bytes with the largest message that a side receives."""
LARGEST: Final = (1 << 24) - 1


class GssapiClient:
    """One authentication. Its methods raise ValueError for a server that does not keep to RFC 4752."""

    def __init__(self, context: SecurityContext) -> None:
        self._context = context
        self._quality = ""

    def first(self) -> bytes:
        """What the client sends first."""
        return self._context.step(None)

    def answer(self, challenge: bytes) -> bytes:
        """What the client sends after the server's `challenge`."""
        if not self._context.complete:
            return self._context.step(challenge)
        if self._quality:
            raise ValueError("a challenge after the quality of protection has been agreed")
        offer, _ = self._context.unwrap(challenge)
        if len(offer) != _OFFER.size:
            raise ValueError(f"an offer of protection of {len(offer)} bytes instead of {_OFFER.size}")
        bits = offer[0]
        self._quality = next((each for each, bit in _LAYERS.items() if bits & bit), "")
        if not self._quality:
            raise ValueError(f"an offer of protection with the bits {bits:#x}; allowed: 1, 2 and 4")
        most = 0 if self._quality == AUTH else LARGEST
        return self._context.wrap(_OFFER.pack(_LAYERS[self._quality] << 24 | most), encrypt=False)

    def finish(self, last: bytes) -> Protection | None:
        """What protects the messages from now on, None: nothing. `last`: what came with the server's success.

        Raises ValueError if the server has not proved who it is, or has agreed on nothing.
        """
        if last or not self._context.complete or not self._quality:
            raise ValueError("the server says that it is done, and has not proved who it is")
        if self._quality == AUTH:
            return None
        return _Wrapped(self._context, encrypt=self._quality == CONFIDENTIALITY)


class _Wrapped:
    """Messages in the context's own form, which numbers and signs them."""

    def __init__(self, context: SecurityContext, *, encrypt: bool) -> None:
        self._context = context
        self._encrypt = encrypt

    def wrap(self, message: bytes) -> bytes:
        """See Protection.wrap."""
        return self._context.wrap(message, encrypt=self._encrypt)

    def unwrap(self, protected: bytes) -> bytes:
        """See Protection.unwrap. What should be encrypted and is not is refused."""
        message, encrypted = self._context.unwrap(protected)
        if self._encrypt and not encrypted:
            raise ValueError("a message that is not encrypted, where auth-conf was agreed")
        return message
