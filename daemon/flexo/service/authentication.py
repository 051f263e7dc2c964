"""Who is calling: no method of flexod runs before the caller has proven a user id.

One interceptor does it for every method there is, so that a new method cannot forget to ask. The credential
names the method and is decoded once (flexo_protos/credentials.py). Requests are parsed after that: what a
stranger sends is not looked at, and what cannot be parsed is refused in a sentence instead of a traceback.
"""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from flexo_protos.credentials import METADATA_KEY, Authenticator, Caller, NotAuthentic

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Serve = Callable[[Any, _Context], Awaitable[Any]]
    _ServeMany = Callable[[Any, _Context], AsyncIterator[Any]]
    _Parse = Callable[[bytes], Any]

VERIFY_WITHIN_S = 10.0
"""munged answers in a fraction of a millisecond; one that hangs must not hold the callers."""
_VERIFIERS = 4

_log = structlog.get_logger("flexo.service")
_caller: ContextVar[Caller] = ContextVar("flexo_caller")


def caller() -> Caller:
    """Who made the call that is being served. Raises LookupError outside of an authenticated call."""
    return _caller.get()


def account(uid: int) -> str:
    """The account's name; its number, which nobody is listed by, where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Authentication(grpc.aio.ServerInterceptor):
    """Refuses with UNAUTHENTICATED every call without a valid credential for its very method."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._verifiers = ThreadPoolExecutor(_VERIFIERS, thread_name_prefix="verify")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._asking_first(method, cast("_Serve", handler.stream_stream)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.response_streaming and not handler.request_streaming:
            serve_many = cast("_ServeMany", handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(
                self._asking_before_the_first(method, handler.request_deserializer, serve_many),
                response_serializer=handler.response_serializer,
            )
        if not handler.request_streaming and not handler.response_streaming:
            serve = cast("_Serve", handler.unary_unary)
            return grpc.unary_unary_rpc_method_handler(
                self._asking_first(method, _parsing(handler.request_deserializer, serve)),
                response_serializer=handler.response_serializer,
            )
        raise NotImplementedError(f"{method}: methods to which only the caller streams are not authenticated")

    def _asking_first(self, method: str, serve: _Serve) -> _Serve:
        async def ask_and_serve(request: Any, context: _Context) -> Any:
            await self._ask(context, method)
            return await serve(request, context)

        return ask_and_serve

    def _asking_before_the_first(self, method: str, parse: _Parse | None, serve: _ServeMany) -> _ServeMany:
        async def ask_and_serve(request: bytes, context: _Context) -> AsyncIterator[Any]:
            await self._ask(context, method)
            async for reply in serve(await _parsed(parse, request, context), context):
                yield reply

        return ask_and_serve

    async def _ask(self, context: _Context, method: str) -> None:
        """Set `caller`, or abort the call."""
        try:
            _caller.set(await self._verified(context, method))
        except NotAuthentic as error:
            _log.warning("call refused", method=method, peer=context.peer(), why=str(error))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))

    async def _verified(self, context: _Context, method: str) -> Caller:
        credentials = [value for key, value in context.invocation_metadata() or () if key == METADATA_KEY]
        if len(credentials) != 1 or not isinstance(credentials[0], str):
            raise NotAuthentic(f"the call carries no MUNGE credential (one '{METADATA_KEY}' in its metadata)")
        verifying = asyncio.get_running_loop().run_in_executor(
            self._verifiers, self._authenticator.verify, credentials[0], method
        )
        try:
            async with asyncio.timeout(VERIFY_WITHIN_S):  # not wait_for: see jobs_service._within
                return await verifying
        except TimeoutError:
            raise NotAuthentic(f"MUNGE did not answer flexod within {VERIFY_WITHIN_S:.0f} s") from None


def _parsing(parse: _Parse | None, serve: _Serve) -> _Serve:
    async def parse_and_serve(request: bytes, context: _Context) -> Any:
        return await serve(await _parsed(parse, request, context), context)

    return parse_and_serve


async def _parsed(parse: _Parse | None, request: bytes, context: _Context) -> Any:
    """The message, or the call aborts. Without `parse`: its bytes."""
    try:
        return parse(request) if parse else request
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
