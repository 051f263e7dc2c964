"""One connection to a Hadoop server: it proves who calls, then makes one call after the other."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from google.protobuf.message import Message

from flexo_protos.hadoop import ipc_pb2 as pb
from flexo_yarn.ipc.digest_md5 import DigestMd5, read_challenge
from flexo_yarn.ipc.errors import Refused, RemoteError, Unreachable
from flexo_yarn.ipc.framing import LENGTH, LONGEST_FRAME, Frame, M, frame
from flexo_yarn.ipc.protection import Protection
from flexo_yarn.ipc.sasl_gssapi import GssapiClient
from flexo_yarn.kerberos import Kerberos

Address = tuple[str, int]
"""Host and port of a server."""

TIMEOUT_S: Final = 60.0
"""The longest wait for one answer, in seconds."""
_MAGIC, _VERSION, _SERVICE_CLASS = b"hrpc", 9, 0
_PLAIN, _SASL = 0, 0xDF
"""What follows the greeting: the connection's context at once, or SASL."""
_CONTEXT, _SASL_MESSAGE = -3, -33
"""Call ids of messages that are no calls."""


class Connection:
    """A connection to the server at `address`. Not for two threads at once; any error closes it.

    `protocol`: the Java name of the server's interface. `token`: proves the caller; else `kerberos` does.
    Without both, the server believes that the caller is `user`; clusters with Kerberos refuse that. Raises
    Unreachable and Refused.
    """

    def __init__(
        self,
        address: Address,
        protocol: str,
        *,
        token: pb.Token | None = None,
        kerberos: Kerberos | None = None,
        user: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        proves = token is not None or kerberos is not None
        self._protocol = protocol
        self._client_id = os.urandom(16)
        self._calls = 0
        self._protection: Protection | None = None
        self._clear = b""
        """Unprotected bytes that no frame has been made of yet."""
        self._where = f"{protocol.rpartition('.')[2].removesuffix('PB')} at {address[0]}:{address[1]}"
        try:
            self._socket = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise Unreachable(f"{self._where}: {error}") from error
        with self._closed_on_error():
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(_MAGIC + bytes([_VERSION, _SERVICE_CLASS, _SASL if proves else _PLAIN]))
            if token is not None:
                self._protection = self._proved_by_token(token)
            elif kerberos is not None:
                self._protection = self._proved_by_tickets(kerberos)
            user_info = None if proves else pb.UserInformation(effective_user=user)
            self._send(
                self._header(_CONTEXT, retry_count=-1),
                pb.IpcConnectionContext(user_info=user_info, protocol=protocol),
            )

    def call(self, method: str, request: Message, answer: type[M]) -> M:
        """Call `method`; return its answer, of type `answer`.

        Raises RemoteError if the method has failed, Unreachable and Refused.
        """
        number, self._calls = self._calls, self._calls + 1
        with self._closed_on_error(method):
            called = pb.RequestHeader(method_name=method, protocol_name=self._protocol, protocol_version=1)
            self._send(self._header(number, retry_count=0), called, request)
            received = Frame(self._frame())
            header = received.take(pb.RpcResponseHeader)
            if header.status == pb.RpcResponseHeader.SUCCESS:
                if header.call_id != number:
                    raise ValueError(f"the answer to call {header.call_id} instead of {number}")
                return received.take(answer)
        where = f"{self._where}, {method}"
        failed = RemoteError(where, header.exception_class, header.error_message)
        if header.status == pb.RpcResponseHeader.FATAL:
            self.close()
            raise Refused(str(failed))
        raise failed

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        self._socket.close()

    @property
    def is_open(self) -> bool:
        """Whether nothing has closed the connection on this side."""
        return self._socket.fileno() >= 0

    # --- authentication ---------------------------------------------------------------------------------

    def _proved_by_token(self, token: pb.Token) -> Protection | None:
        """Prove that this client has `token`; what protects messages from now on. Raises Refused."""
        auth = self._offered("TOKEN", "token")
        challenge = read_challenge(auth.challenge)
        service = f"{auth.protocol}/{auth.server_id}"
        user, password = (base64.b64encode(part).decode() for part in (token.identifier, token.password))
        proof = DigestMd5(challenge, user, password, service)
        done = self._negotiate(self._initiate(auth, proof.response()))
        if done.state != pb.RpcSasl.SUCCESS or not proof.is_proved_by(done.token):
            raise Refused(f"{self._where}: the server does not know the secret of the token")
        return proof.protection()

    def _proved_by_tickets(self, kerberos: Kerberos) -> Protection | None:
        """Prove by Kerberos who calls; what protects messages from now on. Raises Refused."""
        auth = self._offered("KERBEROS", "ticket of Kerberos")
        server = kerberos.server(self._socket.getpeername()[0])
        if (said := f"{auth.protocol}/{auth.server_id}") != server.partition("@")[0]:
            raise Refused(f"{self._where}: the server says that it is {said}, and it should be {server}")
        client = GssapiClient(kerberos.tickets.context(server))
        answer = self._negotiate(self._initiate(auth, client.first()))
        while answer.state == pb.RpcSasl.CHALLENGE:
            response = pb.RpcSasl(state=pb.RpcSasl.RESPONSE, token=client.answer(answer.token))
            answer = self._negotiate(response)
        if answer.state != pb.RpcSasl.SUCCESS:
            raise ValueError(f"{pb.RpcSasl.State.Name(answer.state)} within an authentication")
        return client.finish(answer.token)

    def _offered(self, method: str, what: str) -> pb.RpcSasl.Auth:
        """This method, as the server offers it. Raises Refused."""
        offered = self._negotiate(pb.RpcSasl(state=pb.RpcSasl.NEGOTIATE))
        auth = next((each for each in offered.auths if each.method == method), None)
        if auth is None:
            methods = ", ".join(each.method for each in offered.auths) or "nothing"
            raise Refused(f"{self._where}: the server takes no {what}; it offers {methods}")
        return auth

    @staticmethod
    def _initiate(auth: pb.RpcSasl.Auth, token: bytes) -> pb.RpcSasl:
        chosen = pb.RpcSasl.Auth(
            method=auth.method, mechanism=auth.mechanism, protocol=auth.protocol, server_id=auth.server_id
        )
        return pb.RpcSasl(state=pb.RpcSasl.INITIATE, token=token, auths=[chosen])

    def _negotiate(self, message: pb.RpcSasl) -> pb.RpcSasl:
        self._send(self._header(_SASL_MESSAGE, retry_count=-1), message)
        received = Frame(self._frame())
        header = received.take(pb.RpcResponseHeader)
        if header.status != pb.RpcResponseHeader.SUCCESS:
            refusal = RemoteError(self._where, header.exception_class, header.error_message)
            raise Refused(str(refusal))
        return received.take(pb.RpcSasl)

    # --- bytes ------------------------------------------------------------------------------------------

    def _header(self, call_id: int, *, retry_count: int) -> pb.RpcRequestHeader:
        return pb.RpcRequestHeader(
            rpc_kind=pb.RPC_PROTOCOL_BUFFER,
            rpc_op=pb.RpcRequestHeader.RPC_FINAL_PACKET,
            call_id=call_id,
            client_id=b"" if call_id == _SASL_MESSAGE else self._client_id,
            retry_count=retry_count,
        )

    def _send(self, *messages: Message) -> None:
        data = frame(*messages)
        if self._protection is not None:
            wrapped = pb.RpcSasl(state=pb.RpcSasl.WRAP, token=self._protection.wrap(data))
            data = frame(self._header(_SASL_MESSAGE, retry_count=-1), wrapped)
        self._socket.sendall(data)

    def _frame(self) -> bytes:
        """The next frame. A protected message may hold a part of a frame, or several frames."""
        if self._protection is None:
            return self._exactly(self._length(self._exactly(LENGTH.size)))
        while not (body := self._take_clear()):
            outer = Frame(self._exactly(self._length(self._exactly(LENGTH.size))))
            outer.take(pb.RpcResponseHeader)
            self._clear += self._protection.unwrap(outer.take(pb.RpcSasl).token)
        return body

    def _take_clear(self) -> bytes:
        if len(self._clear) < LENGTH.size:
            return b""
        end = LENGTH.size + self._length(self._clear[: LENGTH.size])
        if len(self._clear) < end:
            return b""
        body, self._clear = self._clear[LENGTH.size : end], self._clear[end:]
        return body

    @staticmethod
    def _length(prefix: bytes) -> int:
        (length,) = LENGTH.unpack(prefix)
        if not 0 < length <= LONGEST_FRAME:
            raise ValueError(f"a frame of {length} bytes; allowed: 1 to {LONGEST_FRAME}")
        return int(length)

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            if not (part := self._socket.recv(min(count - len(received), 1 << 20))):
                raise ConnectionResetError("the server closed the connection")
            received += part
        return bytes(received)

    @contextmanager
    def _closed_on_error(self, method: str = "") -> Iterator[None]:
        """Close the connection after any error: the next bytes could belong to anything."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._socket.close()
            where = f"{self._where}, {method}" if method else self._where
            if isinstance(error, OSError):
                raise Unreachable(f"{where}: {error}") from error
            if isinstance(error, ValueError):
                raise Unreachable(f"{where}: not Hadoop's IPC: {error}") from error
            raise
