"""Kerberos: whose tickets this process uses, and the GSSAPI contexts in which it proves them to a server.

The tickets are those of the ticket cache (kinit), or those that a keytab gets: the library of Kerberos gets
new ones in time, when a context begins. The Python package gssapi does the work. It is optional: processes in
containers have tokens instead, and need none of this.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from flexo_yarn.ipc.errors import Refused

INSTALL: Final = "pip install 'flexo[kerberos]' (it is compiled: Debian's libkrb5-dev, python3-dev and gcc)"
KERBEROS_5: Final = "1.2.840.113554.1.2.2"
SPNEGO: Final = "1.3.6.1.5.5.2"
"""Mechanisms of GSSAPI, as object identifiers: of Hadoop's calls, and of HTTP."""
_HOST = "_HOST"


class NoTickets(Refused):
    """There is no ticket for a server, or the server's answer is no proof; the message says what to do."""


class SecurityContext(Protocol):
    """The client's side of a GSSAPI context. `step` raises NoTickets, the others ValueError."""

    @property
    def complete(self) -> bool:
        """Whether both sides have proved who they are."""
        ...

    def step(self, token: bytes | None) -> bytes:
        """What to send next, after the server has sent `token`; None: it has sent nothing yet."""
        ...

    def wrap(self, message: bytes, *, encrypt: bool) -> bytes:
        """The signed form of a message, encrypted too if `encrypt`."""
        ...

    def unwrap(self, protected: bytes) -> tuple[bytes, bool]:
        """The message in its protected form, and whether it was encrypted."""
        ...


@dataclass(frozen=True, slots=True)
class Tickets:
    """Whose tickets: those of the ticket cache, or with `keytab`, those that it gets for `principal`."""

    keytab: Path | None = None
    principal: str = ""
    """Like "ada@REALM"; "" with a ticket cache: whose it is."""
    _cache: str = field(default_factory=lambda: f"MEMORY:flexo-{os.urandom(8).hex()}")
    """Of the keytab's tickets, in this process."""

    def context(self, server: str, mechanism: str = KERBEROS_5) -> SecurityContext:
        """A new context with the server of this principal. Raises NoTickets."""
        try:
            import gssapi
        except ImportError as error:
            raise NoTickets(
                f"Kerberos needs the Python package gssapi, which cannot be loaded ({error}): {INSTALL}"
            ) from error
        try:
            name = gssapi.Name(server, gssapi.NameType.kerberos_principal)
            own = gssapi.Name(self.principal, gssapi.NameType.kerberos_principal) if self.principal else None
            store = {"client_keytab": str(self.keytab), "ccache": self._cache} if self.keytab else None
            credentials = gssapi.Credentials(name=own, usage="initiate", store=store)
            flags = (
                gssapi.RequirementFlag.mutual_authentication
                | gssapi.RequirementFlag.integrity
                | gssapi.RequirementFlag.confidentiality
                | gssapi.RequirementFlag.replay_detection
                | gssapi.RequirementFlag.out_of_sequence_detection
            )
            context = gssapi.SecurityContext(
                name=name,
                creds=credentials,
                usage="initiate",
                mech=gssapi.OID.from_int_seq(mechanism),
                flags=flags,
            )
        except gssapi.exceptions.GSSError as error:
            raise self._failed(server, error) from error
        return _Context(context, server, self)

    def _failed(self, server: str, error: Any) -> NoTickets:
        """`error`: GSSError of the package gssapi. Kerberos' own words are those of the minor status."""
        said = " ".join(error.get_all_statuses(error.min_code, False)) or str(error)
        if self.keytab:
            return NoTickets(f"no ticket of {self.principal} for {server} by {self.keytab}: {said}")
        what = f"no ticket for {server}: {said}"
        return NoTickets(f"{what}. Run kinit, or name a keytab (flexod: [yarn] keytab, else --keytab)")


@dataclass(frozen=True, slots=True)
class Kerberos:
    """How calls of one service are proved: the tickets, and the principal that the service must have."""

    tickets: Tickets
    service: str
    """Like "rm/_HOST@REALM": yarn.resourcemanager.principal; _HOST stands for the server's name."""

    def server(self, address: str) -> str:
        """The principal of the server at this IP address: _HOST is its canonical name, as Hadoop has it."""
        if _HOST not in self.service:
            return self.service
        try:
            host, _ = socket.getnameinfo((address, 0), 0)
        except OSError:
            host = address
        return self.service.replace(_HOST, host.lower())

    def web_server(self, address: str) -> str:
        """The principal of the web server there: HTTP instead of the service's own name."""
        _, slash, rest = self.server(address).partition("/")
        return f"HTTP{slash}{rest}"


class _Context:
    """See SecurityContext. `context`: of the package gssapi."""

    def __init__(self, context: Any, server: str, tickets: Tickets) -> None:
        from gssapi.exceptions import GSSError

        self._context = context
        self._server = server
        self._tickets = tickets
        self._error = GSSError

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    def step(self, token: bytes | None) -> bytes:
        try:
            return self._context.step(token) or b""
        except self._error as error:
            raise self._tickets._failed(self._server, error) from error

    def wrap(self, message: bytes, *, encrypt: bool) -> bytes:
        try:
            return bytes(self._context.wrap(message, encrypt).message)
        except self._error as error:
            raise ValueError(f"a message to {self._server} cannot be protected: {error}") from error

    def unwrap(self, protected: bytes) -> tuple[bytes, bool]:
        try:
            message, encrypted, _ = self._context.unwrap(protected)
        except self._error as error:
            raise ValueError(f"a protected message of {self._server}: {error}") from error
        return bytes(message), bool(encrypted)
