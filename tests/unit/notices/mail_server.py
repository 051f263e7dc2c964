"""A small real SMTP server, with STARTTLS or TLS from the beginning, that keeps the mails it takes."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType

from certificates import Pair


@dataclass
class MailServer:
    """Serves one connection after the other at a port of its own while its context lasts."""

    pair: Pair | None = None
    """Its certificate; None: it has no TLS."""
    tls_at_once: bool = False
    refuses: str = ""
    """A receiver that it refuses."""
    mails: list[EmailMessage] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    """Whether each mail came over TLS."""
    _socket: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> MailServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                plug, _ = self._socket.accept()
            except OSError:
                return
            with plug:
                try:
                    self._talk(plug)
                except OSError:
                    continue  # the client has hung up, or does not trust us

    def _veiled(self, plug: socket.socket) -> ssl.SSLSocket:
        assert self.pair is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pair.certificate, self.pair.key)
        return context.wrap_socket(plug, server_side=True)

    def _talk(self, plug: socket.socket) -> None:
        encrypted = self.tls_at_once
        if self.tls_at_once:
            plug = self._veiled(plug)
        lines = plug.makefile("rb")
        plug.sendall(b"220 ready\r\n")
        while line := lines.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"EHLO":
                offer = b"250-mail\r\n" + (b"250-STARTTLS\r\n" if self.pair and not encrypted else b"")
                plug.sendall(offer + b"250 8BITMIME\r\n")
            elif word == b"STARTTLS" and self.pair:
                plug.sendall(b"220 go\r\n")
                plug, encrypted = self._veiled(plug), True
                lines = plug.makefile("rb")
            elif word == b"RCPT" and self.refuses and self.refuses.encode() in line:
                plug.sendall(b"550 no such mailbox\r\n")
            elif word == b"DATA":
                plug.sendall(b"354 go on\r\n")
                self._keep(lines, encrypted)
                plug.sendall(b"250 taken\r\n")
            elif word == b"QUIT":
                plug.sendall(b"221 bye\r\n")
                return
            else:
                plug.sendall(b"250 fine\r\n")

    def _keep(self, lines: object, encrypted: bool) -> None:
        data = b""
        while (line := lines.readline()) not in (b".\r\n", b""):  # type: ignore[attr-defined]
            data += line[1:] if line.startswith(b"..") else line
        mail = message_from_bytes(data, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.encrypted.append(encrypted)
        self.mails.append(mail)
