"""Several ResourceManagers of which one is active: calls go to the one that answers.

A ResourceManager on standby listens for neither clients nor ApplicationMasters. While it changes, it may
throw StandbyException.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn.ipc.client import Client
from flexo_yarn.ipc.connection import Address
from flexo_yarn.ipc.errors import RemoteError, Unreachable
from flexo_yarn.ipc.framing import M

Servers = tuple[Address, ...]
"""One address for each ResourceManager; mostly there is one."""

_STANDBY: Final = "StandbyException"
_answered: Final[dict[Servers, int]] = {}
"""By servers: which of them has answered last. A host that is down costs a timeout, and only once."""
_T = TypeVar("_T")


class FailoverClient:
    """Clients of the same service at several addresses, for one thread at a time."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = {client.address: client for client in clients}

    def call(self, method: str, request: Message, answer: type[M]) -> M:
        """Call `method` of the active server. Raises RemoteError, Unreachable, Refused.

        A call whose answer was lost is made again at another server: YARN takes every call that flexo makes
        twice.
        """

        def ask(address: Address) -> M:
            try:
                return self._clients[address].call(method, request, answer)
            except RemoteError as error:
                if error.exception_class == _STANDBY:
                    raise Unreachable(str(error)) from error
                raise

        return first_answer(tuple(self._clients), ask)

    def use(self, token: Token) -> None:
        """Prove with another token who calls, from the next call on."""
        for client in self._clients.values():
            client.token = token
        self.close()

    def close(self) -> None:
        """Close all connections; the next call opens another one."""
        for client in self._clients.values():
            client.close()


def first_answer(servers: Servers, ask: Callable[[Address], _T]) -> _T:
    """The answer of the first server that gives one; the one that answered last is asked first.

    Raises Unreachable if none does, and whatever else `ask` raises.
    """
    first = _answered.get(servers, 0)
    failed = []
    for number in (first, *(each for each in range(len(servers)) if each != first)):
        try:
            answer = ask(servers[number])
        except Unreachable as error:
            failed.append(error)
            continue
        except RemoteError:
            _answered[servers] = number
            raise
        _answered[servers] = number
        return answer
    raise Unreachable("; ".join(str(error) for error in failed)) from failed[-1]
