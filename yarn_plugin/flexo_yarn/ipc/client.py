"""A client of one Hadoop server: it connects at its first call, and again after the connection broke."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import Message

from flexo_protos.hadoop import ipc_pb2 as pb
from flexo_yarn.ipc.connection import TIMEOUT_S, Address, Connection
from flexo_yarn.ipc.errors import Unreachable
from flexo_yarn.ipc.framing import M
from flexo_yarn.kerberos import Kerberos


@dataclass(slots=True)
class Client:
    """A client of the server at `address`, for one thread at a time. The fields are those of Connection."""

    address: Address
    protocol: str
    token: pb.Token | None = None
    kerberos: Kerberos | None = None
    user: str = ""
    timeout_s: float = TIMEOUT_S
    _connection: Connection | None = None

    def call(self, method: str, request: Message, answer: type[M]) -> M:
        """Call `method`. Raises RemoteError, Unreachable, Refused.

        A call on an old connection that breaks is made once more, on a new one: the server has restarted, or
        has closed an idle connection. A call that nobody answers in time is not. YARN takes every call that
        flexo makes twice.
        """
        if self._connection is not None and self._connection.is_open:
            try:
                return self._connection.call(method, request, answer)
            except Unreachable as error:
                self._connection.close()
                if isinstance(error.__cause__, TimeoutError):
                    raise  # a server that hangs accepts connections, and would cost another timeout
        self._connection = Connection(
            self.address,
            self.protocol,
            token=self.token,
            kerberos=self.kerberos,
            user=self.user,
            timeout_s=self.timeout_s,
        )
        return self._connection.call(method, request, answer)

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
