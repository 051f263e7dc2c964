"""Both ends of a call inside a job prove to each other that they belong to the job's user."""

from __future__ import annotations

import os
from typing import Final, NoReturn

import grpc

from flexo_protos.connections import ConnectionGuard
from flexo_protos.credentials import METADATA_KEY, Authenticator, NotAuthentic


def callers_proof(method: str, server: str) -> str:
    """The purpose of a caller's credential. It names `server` (host:port), so nobody can relay it."""
    return f"{method}@{server}"


def servers_proof(method: str, server: str) -> str:
    """The purpose of a server's credential, in the initial metadata of its answer."""
    return f"{method}@{server}/answer"


class Doorkeeper:
    """Lets only callers of this process's own user into a server. Any thread may call it."""

    def __init__(self, authenticator: Authenticator, guard: ConnectionGuard) -> None:
        self._authenticator: Final = authenticator
        self._guard: Final = guard

    def admit(self, context: grpc.ServicerContext, purpose: str) -> int:
        """Return the caller's uid. A call without a credential for `purpose` of this user is aborted."""
        credential = str(dict(context.invocation_metadata()).get(METADATA_KEY, ""))
        if not credential:
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, "the call carries no credential")
        try:
            caller = self._authenticator.verify(credential, purpose)
        except NotAuthentic as error:
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if caller.uid != os.getuid():
            refuse(context, grpc.StatusCode.PERMISSION_DENIED, "this job belongs to another user")
        self._guard.has_proven(context.peer())
        return caller.uid

    def admit_and_answer(self, context: grpc.ServicerContext, method: str, server: str) -> None:
        """Admit the caller of `method` at `server`, this one, and prove the same to the caller."""
        self.admit(context, callers_proof(method, server))
        try:
            answer = self._authenticator.credential(servers_proof(method, server))
        except NotAuthentic as error:
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        context.send_initial_metadata(((METADATA_KEY, answer),))


class ProvingCaller:
    """Proves to the server at `server` (host:port) who calls, and has it prove the same."""

    def __init__(self, authenticator: Authenticator, server: str) -> None:
        self._authenticator: Final = authenticator
        self._server: Final = server

    def metadata(self, method: str) -> tuple[tuple[str, str]]:
        """What the call of `method` carries. Raises NotAuthentic if no credential can be made."""
        return ((METADATA_KEY, self._authenticator.credential(callers_proof(method, self._server))),)

    def check(self, method: str, call: grpc.Call) -> None:
        """Raise NotAuthentic unless the server of a call has proven that it is this user's own."""
        credential = str(dict(call.initial_metadata() or ()).get(METADATA_KEY, ""))
        if not credential:
            raise NotAuthentic(f"{self._server} does not prove that it belongs to this job")
        if self._authenticator.verify(credential, servers_proof(method, self._server)).uid != os.getuid():
            raise NotAuthentic(f"{self._server} is another user's, and not of this job")


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    """Abort a call."""
    context.abort(code, text)
    raise AssertionError("abort raises")
