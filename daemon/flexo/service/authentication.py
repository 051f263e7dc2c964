"""Authenticates callers: no method of flexod runs before the caller has proven a user id.

One interceptor does it for all methods, so that a new method cannot forget it. The interceptor serves each
method as a stream of raw bytes. Otherwise gRPC would wait for the message first, and a caller who sends only
headers would hold a call without an authentication. So the credential is checked at the headers; it names the
method and is decoded once (flexo_protos/credentials.py). The one message of a unary call is read and parsed
after that, within a time limit, and within the limits of its user (budgets.py).
"""

from __future__ import annotations

import asyncio
import pwd
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from flexo.model.queue import Principal
from flexo.service.budgets import (
    STANDARD,
    Buckets,
    Budgets,
    Exhausted,
    Kind,
    TokenBucket,
    UsersCalls,
    kind_of,
)
from flexo.service.fair_queue import Evicted, FairQueue
from flexo.service.logs import LimitedLog
from flexo.service.workers import started_pool
from flexo.words import one_line
from flexo_protos.connections import ConnectionGuard, hang_up_on
from flexo_protos.credentials import METADATA_KEY, Authenticator, Caller, NotAuthentic

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Serve = Callable[[Any, _Context], Awaitable[Any]]
    _ServeMany = Callable[[Any, _Context], AsyncGenerator[Any]]
    _Parse = Callable[[bytes], Any]

_LOGGED_PER_S, _LOGGED_BURST = 1.0, 20.0
"""The rate and the burst of log lines about closed connections."""
_METHOD: Final = 100
"""The most characters of a method's name that are logged: a caller may have invented it."""
_REMEMBERED: Final = 4096
"""The most connections that are remembered because of a refusal, or because they are being closed."""
_GATHER_S: Final = 0.05
"""The interval between two passes over all connections to close some."""
_ANSWERING_AT_ONCE: Final = 256
"""The most reads of all users that are answered at the same time, slow readers' included."""

_log = structlog.get_logger("flexo.service")
_caller: ContextVar[Caller] = ContextVar("flexo_caller")


def caller() -> Caller:
    """The caller of the call that is being served. Raises LookupError outside of an authenticated call."""
    return _caller.get()


def principal_of(uid: int) -> Principal:
    """The owner, as jobs name it, for a caller with this uid."""
    return Principal(str(uid))


def account(uid: int) -> str:
    """The account's name; its number, by which nobody is listed, if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Authentication(grpc.aio.ServerInterceptor):
    """Refuses with UNAUTHENTICATED every call without a valid credential for its very method."""

    def __init__(
        self,
        authenticator: Authenticator,
        budgets: Budgets = STANDARD,
        guard: ConnectionGuard | None = None,
    ) -> None:
        """`guard`: is told which user has proven itself on which connection."""
        self._budgets = budgets
        self._guard = guard
        self._verifying = _Verifying(authenticator, budgets)
        self._calls = UsersCalls(budgets)
        self._over = _Over(budgets.refused_for_s)
        self._reads = FairQueue(_ANSWERING_AT_ONCE, of_one=budgets.reads_at_once)
        self._refused = Buckets(budgets.refused_again_per_s, budgets.refusals_of_a_connection)
        self._log = LimitedLog()
        self._hanging_up = _HangingUp()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        credential = _credential(handler_call_details.invocation_metadata)
        if credential is None:
            return self._refusing(one_line(method, _METHOD))
        if handler is None:  # such as a method of a newer release
            handler = grpc.stream_stream_rpc_method_handler(_unknown)
        if handler.request_streaming and not handler.response_streaming:
            raise NotImplementedError(
                f"{method}: methods to which only the caller streams are not authenticated"
            )
        answer = self._answering(handler)

        async def serve(requests: object, context: _Context) -> None:
            peer, kind = context.peer(), kind_of(method)
            try:
                self._over.check(peer)
                proven = await self._verifying.caller_of(credential, peer, method)
                self._over.check(peer)
                leave = self._calls.enter(proven.uid, kind)
            except NotAuthentic as error:
                await self._refuse(context, one_line(method, _METHOD), str(error))
            except Exhausted as error:
                self._over.note(peer, str(error))
                self._log.warning("call refused", method=one_line(method, _METHOD), peer=peer, why=str(error))
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            context.add_done_callback(leave)  # type: ignore[arg-type]  # its stub wants a class for a function
            _caller.set(proven)
            if self._guard is not None:
                context.add_done_callback(self._guard.has_proven(peer, proven.uid))  # type: ignore[arg-type]
            if wait_s := self._calls.wait_s(proven.uid, kind):
                await asyncio.sleep(wait_s)
            await answer(method, context)

        return grpc.stream_stream_rpc_method_handler(serve)

    def _refusing(self, method: str) -> _Handler:
        """The handler for a call without a credential."""

        async def refuse(requests: object, context: _Context) -> None:
            why = f"the call carries no credential (one '{METADATA_KEY}' in its metadata)"
            await self._refuse(context, method, why, self._budgets.no_credential)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _answering(self, handler: _Handler) -> Callable[[str, _Context], Awaitable[None]]:
        serialize = cast("Callable[[Any], bytes]", handler.response_serializer)

        async def converse(method: str, context: _Context) -> None:
            await cast("_Serve", handler.stream_stream)(None, context)

        async def answer_many(method: str, context: _Context) -> None:
            request = await self._request(handler.request_deserializer, context)
            async with aclosing(cast("_ServeMany", handler.unary_stream)(request, context)) as replies:
                async for reply in replies:
                    await self._write(context, serialize(reply))

        async def answer(method: str, context: _Context) -> None:
            request = await self._request(handler.request_deserializer, context)
            serve = cast("_Serve", handler.unary_unary)
            if kind_of(method) is not Kind.READ:
                await self._write(context, serialize(await serve(request, context)))
                return
            async with self._reads.turn(caller().uid):
                reply = await serve(request, context)
                await self._write(context, reply if isinstance(reply, bytes) else serialize(reply))

        if handler.request_streaming:
            return converse
        return answer_many if handler.response_streaming else answer

    async def _request(self, parse: _Parse | None, context: _Context) -> Any:
        """The one message of a call. If there is no good one in time, the call aborts."""
        within_s = self._budgets.message_within_s
        try:
            async with asyncio.timeout(within_s):  # not wait_for: see streams.within
                request = await context.read()
        except TimeoutError:
            text = f"the call's message was not whole after {within_s:.0f} s: send it right after the headers"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        if not isinstance(request, bytes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message: it takes one")
        try:
            return parse(request) if parse else request
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _write(self, context: _Context, reply: bytes) -> None:
        """Write `reply`, and return when the caller has taken it. A caller that does not take it loses the
        connection: gRPC would keep the message, and the call, for as long as the connection lasts."""
        within_s = self._budgets.answer_within_s
        try:
            async with asyncio.timeout(within_s):
                await context.write(reply)
        except TimeoutError:
            _log.warning(f"an answer was not read for {within_s:.0f} s", peer=context.peer())
            self._hanging_up.on(context.peer())
            raise asyncio.CancelledError from None

    async def _refuse(self, context: _Context, method: str, why: str, weight: int = 1) -> NoReturn:
        peer = context.peer()
        if self._hanging_up.soon(peer):
            raise asyncio.CancelledError
        self._log.warning("call refused", method=method, peer=peer, why=why)
        if not self._refused.take(peer, weight):
            self._hanging_up.on(peer)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)


async def _unknown(requests: object, context: _Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this release of flexod has no such method")


class _Over:
    """Connections whose caller had one call too many. For a while, their calls are refused without
    verification."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def note(self, peer: str, why: str) -> None:
        """Note that a call of `peer` was refused."""
        if peer not in self._until:
            self._until[peer] = (time.monotonic() + self._seconds, why)
            if len(self._until) > _REMEMBERED:
                self._until.popitem(last=False)

    def check(self, peer: str) -> None:
        """Raise Exhausted if a call of `peer` was refused a short while ago."""
        until, why = self._until.get(peer, (0.0, ""))
        if time.monotonic() < until:
            raise Exhausted(why)
        self._until.pop(peer, None)


class _HangingUp:
    """Closes connections, many at a time: finding them takes a pass over all connections."""

    def __init__(self) -> None:
        self._peers: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._logging = TokenBucket(_LOGGED_PER_S, _LOGGED_BURST)

    def on(self, peer: str) -> None:
        """Close the connection to `peer`, soon."""
        self._peers.add(peer)
        self._closed[peer] = None
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._close())

    def soon(self, peer: str) -> bool:
        """Whether the connection to `peer` is being closed: earlier calls on it need no answer."""
        return peer in self._closed

    async def _close(self) -> None:
        while self._peers:
            peers, self._peers = self._peers, set()
            if await asyncio.to_thread(hang_up_on, peers) and self._logging.take():
                _log.warning("connections closed", peers=len(peers), one=next(iter(peers)))
            await asyncio.sleep(_GATHER_S)


class _Verifying:
    """Verifies credentials, for one connection after the other: many calls on one delay no call on
    another."""

    def __init__(self, authenticator: Authenticator, budgets: Budgets) -> None:
        self._authenticator = authenticator
        self._budgets = budgets
        self._threads = started_pool(budgets.verifications_at_once, "verify")
        self._queue = FairQueue(budgets.verifications_at_once, of_one=1, waiting=budgets.unproven_calls)

    async def caller_of(self, credential: str, peer: str, method: str) -> Caller:
        """The caller of this call. Raises NotAuthentic, and Exhausted if too many calls wait."""
        budgets = self._budgets
        try:
            async with asyncio.timeout(budgets.prove_within_s):  # not wait_for: see streams.within
                return await self._verified(credential, peer, method)
        except TimeoutError:
            text = f"the credential could not be verified within {budgets.prove_within_s:.0f} s"
            raise NotAuthentic(text) from None
        except Evicted:
            raise Exhausted(
                f"more than {budgets.unproven_calls} calls wait for verification, most of them on the"
                f" connection of {peer}: flexod drops the oldest; call again"
            ) from None

    async def _verified(self, credential: str, peer: str, method: str) -> Caller:
        await self._queue.enter(peer)
        try:
            verifying = asyncio.get_running_loop().run_in_executor(
                self._threads, self._authenticator.verify, credential, method
            )
        except BaseException:
            self._queue.leave(peer)
            raise
        verifying.add_done_callback(lambda ended: self._done(ended, peer))
        # If the call ends, its thread still waits for an answer, and leaves the queue with it.
        return await asyncio.shield(verifying)

    def _done(self, verifying: asyncio.Future[Caller], peer: str) -> None:
        self._queue.leave(peer)
        if not verifying.cancelled():
            verifying.exception()  # whoever waited has heard it, or has gone


def _credential(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The one credential that a call carries; None if it carries none or several."""
    found = [value for key, value in metadata or () if key == METADATA_KEY]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None
