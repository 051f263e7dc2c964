"""Kerberos at the boundary of its library: SASL's GSSAPI as RFC 4752 has it, and what its absence says."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from flexo_protos.hadoop import ipc_pb2 as ipc
from flexo_yarn.ipc.connection import Connection
from flexo_yarn.ipc.errors import Refused
from flexo_yarn.ipc.framing import LENGTH, Frame, frame
from flexo_yarn.ipc.sasl_gssapi import GssapiClient
from flexo_yarn.kerberos import Kerberos, NoTickets, Tickets


class Context:
    """A security context whose proof takes `steps` tokens, and whose protection can be read."""

    def __init__(self, steps: int = 1) -> None:
        self._left = steps
        self._sent = self._received = 0

    @property
    def complete(self) -> bool:
        return self._left == 0

    def step(self, token: bytes | None) -> bytes:
        if token is None:
            return b"ticket"
        self._left -= 1
        return b"" if self.complete else b"more"

    def wrap(self, message: bytes, *, encrypt: bool) -> bytes:
        self._sent += 1
        return protected(self._sent - 1, message, encrypt=encrypt)

    def unwrap(self, received: bytes) -> tuple[bytes, bool]:
        self._received += 1
        if received[0] != self._received - 1:
            raise ValueError("out of order")
        return received[2:], received[1:2] == b"E"


def protected(number: int, message: bytes, *, encrypt: bool) -> bytes:
    return bytes([number]) + (b"E" if encrypt else b"S") + message


def agreed(bits: int) -> GssapiClient:
    """A client that has agreed with a server which offers these qualities."""
    client = GssapiClient(Context())
    client.first()
    client.answer(b"proof")
    client.answer(protected(0, bytes([bits, 1, 0, 0]), encrypt=False))
    return client


@pytest.mark.parametrize(
    ("bits", "reply"),
    [
        (1, b"\x01\0\0\0"),
        (2, b"\x02\xff\xff\xff"),
        (4, b"\x04\xff\xff\xff"),
        (7, b"\x04\xff\xff\xff"),
        (3, b"\x02\xff\xff\xff"),
    ],
)
def test_the_strongest_quality_that_is_offered_is_chosen(bits: int, reply: bytes) -> None:
    client = GssapiClient(Context(steps=2))
    assert client.first() == b"ticket"
    assert client.answer(b"one") == b"more"
    assert client.answer(b"two") == b""
    answer = client.answer(protected(0, bytes([bits, 1, 0, 0]), encrypt=False))
    assert answer == protected(0, reply, encrypt=False)


def test_messages_are_as_the_quality_says() -> None:
    assert agreed(1).finish(b"") is None
    for bits, encrypt in ((2, False), (4, True)):
        protection = agreed(bits).finish(b"")
        assert protection is not None
        assert protection.wrap(b"call") == protected(1, b"call", encrypt=encrypt)
        assert protection.unwrap(protected(1, b"answer", encrypt=encrypt)) == b"answer"


def test_a_message_that_is_not_encrypted_is_refused_where_all_should_be() -> None:
    protection = agreed(4).finish(b"")
    assert protection is not None
    with pytest.raises(ValueError, match="not encrypted"):
        protection.unwrap(protected(1, b"answer", encrypt=False))


@pytest.mark.parametrize("offer", [b"", b"\x04\0\0", bytes(4), b"\x08\0\0\0"])
def test_an_offer_that_cannot_be_is_refused(offer: bytes) -> None:
    client = GssapiClient(Context())
    client.first()
    client.answer(b"proof")
    with pytest.raises(ValueError, match="offer"):
        client.answer(protected(0, offer, encrypt=False))


def test_a_server_that_is_done_too_early_or_too_late_is_refused() -> None:
    early = GssapiClient(Context())
    early.first()
    with pytest.raises(ValueError, match="has not proved"):
        early.finish(b"")
    early.answer(b"proof")
    with pytest.raises(ValueError, match="has not proved"):  # no quality was agreed
        early.finish(b"")
    with pytest.raises(ValueError, match="after"):
        agreed(1).answer(protected(1, b"again", encrypt=False))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(NoTickets, match=r"flexo\[kerberos\]"):
        Tickets(Path("/etc/flexo.keytab"), "flexo@EXAMPLE.COM").context("rm/host@EXAMPLE.COM")


def test_host_stands_for_the_servers_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getnameinfo", lambda address, flags: ("RM1.Example.Com", "0"))
    kerberos = Kerberos(Tickets(), "rm/_HOST@EXAMPLE.COM")
    assert kerberos.server("192.0.2.1") == "rm/rm1.example.com@EXAMPLE.COM"
    assert kerberos.web_server("192.0.2.1") == "HTTP/rm1.example.com@EXAMPLE.COM"
    assert Kerberos(Tickets(), "rm/a@EXAMPLE.COM").server("192.0.2.1") == "rm/a@EXAMPLE.COM"


# --- on a connection ------------------------------------------------------------------------------------


class FakeTickets(Tickets):
    """Tickets whose contexts need no Kerberos."""

    def context(self, server: str, mechanism: str = "") -> Context:
        return Context()


class Server(threading.Thread):
    """A server of Hadoop's IPC for one connection: it authenticates by GSSAPI, and answers one call."""

    def __init__(self, server_id: str, bits: int = 4) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._auth = ipc.RpcSasl.Auth(
            method="KERBEROS", mechanism="GSSAPI", protocol="rm", server_id=server_id
        )
        self._offer = protected(0, bytes([bits, 1, 0, 0]), encrypt=False)
        self.start()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        self._file = connection.makefile("rwb")
        assert self._file.read(7) == b"hrpc\x09\x00\xdf"
        with suppress(OSError, EOFError, ValueError, struct.error):
            assert self._sasl().state == ipc.RpcSasl.NEGOTIATE
            self._say(ipc.RpcSasl(state=ipc.RpcSasl.NEGOTIATE, auths=[self._auth]))
            assert self._sasl().token == b"ticket"
            self._say(ipc.RpcSasl(state=ipc.RpcSasl.CHALLENGE, token=b"proof"))
            assert self._sasl().token == b""
            self._say(ipc.RpcSasl(state=ipc.RpcSasl.CHALLENGE, token=self._offer))
            self._sasl()
            self._say(ipc.RpcSasl(state=ipc.RpcSasl.SUCCESS))
            self._sasl()  # the connection's context
            assert b"nodes" in self._sasl().token
            header = ipc.RpcResponseHeader(call_id=0, status=ipc.RpcResponseHeader.SUCCESS)
            answer = frame(header, ipc.IpcConnectionContext(protocol="the answer"))
            for number, part in enumerate((answer[:7], answer[7:]), 1):  # a protected message may be any part
                token = protected(number, part, encrypt=True)
                self._say(ipc.RpcSasl(state=ipc.RpcSasl.WRAP, token=token))

    def _sasl(self) -> ipc.RpcSasl:
        (length,) = LENGTH.unpack(self._file.read(LENGTH.size))
        received = Frame(self._file.read(length))
        received.take(ipc.RpcRequestHeader)
        return received.take(ipc.RpcSasl)

    def _say(self, message: ipc.RpcSasl) -> None:
        header = ipc.RpcResponseHeader(call_id=0, status=ipc.RpcResponseHeader.SUCCESS)
        self._file.write(frame(header, message))
        self._file.flush()


def connected(server: Server) -> Connection:
    kerberos = Kerberos(FakeTickets(), "rm/_HOST@EXAMPLE.COM")
    return Connection(server.address, "test.ProtocolPB", kerberos=kerberos, timeout_s=5)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getnameinfo", lambda address, flags: ("rm1", "0"))


@pytest.mark.usefixtures("named")
def test_a_call_is_made_in_protected_messages_after_the_authentication() -> None:
    connection = connected(Server("rm1"))
    answer = connection.call("nodes", ipc.IpcConnectionContext(), ipc.IpcConnectionContext)
    assert answer.protocol == "the answer"
    connection.close()


@pytest.mark.usefixtures("named")
def test_a_server_of_another_principal_is_refused_before_it_hears_anything() -> None:
    with pytest.raises(Refused, match=r"rm/rm2.*rm/rm1@EXAMPLE.COM"):
        connected(Server("rm2"))
