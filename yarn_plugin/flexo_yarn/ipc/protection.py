"""The quality of protection of a connection (hadoop.rpc.protection): its names, and what carries it out."""

from __future__ import annotations

from typing import Final, Protocol

AUTH, INTEGRITY, CONFIDENTIALITY = "auth", "auth-int", "auth-conf"
QUALITIES: Final = (AUTH, INTEGRITY, CONFIDENTIALITY)
"""SASL's words: the caller is proved; each message is signed; each message is encrypted too."""


class Protection(Protocol):
    """What protects the messages of a connection after authentication."""

    def wrap(self, message: bytes) -> bytes:
        """The protected form of a message that is sent."""
        ...

    def unwrap(self, protected: bytes) -> bytes:
        """The message in its protected form. Raises ValueError if it was changed, repeated or left out."""
        ...
