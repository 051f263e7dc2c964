"""The service for the inference cluster: its scheduler pushes demand, reclaims servers, and watches them come
back.

authentication.py has proven the caller before. This module admits only a few users. A push is checked where
it is kept (loaning/pushed.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, NoReturn

import grpc
import grpc.aio
import structlog

from flexo.loaning.pushed import BadPush, Called, Fault, LendingStatus, PushedDemand
from flexo.service.authentication import account, caller
from flexo.service.budgets import STANDARD, Budgets, RefusalLimits
from flexo.service.logs import LimitedLog
from flexo.words import one_line
from flexo_protos.v1 import inference_pb2 as pb
from flexo_protos.v1 import inference_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    from typing import Any

    _Context = grpc.aio.ServicerContext[Any, Any]

_CODES = {
    Fault.WRONG: grpc.StatusCode.INVALID_ARGUMENT,
    Fault.OUTDATED: grpc.StatusCode.FAILED_PRECONDITION,
    Fault.TOO_EARLY: grpc.StatusCode.UNAVAILABLE,
    Fault.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_log = structlog.get_logger("flexo.service")


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """See protos/flexo/v1/inference.proto. `users` may push; `wake` is called when lending has news."""

    def __init__(
        self,
        pushed: PushedDemand | None,
        users: frozenset[str],
        wake: Callable[[], None],
        budgets: Budgets = STANDARD,
    ) -> None:
        self._pushed = pushed
        self._refusals = RefusalLimits(budgets)
        self._log = LimitedLog()
        self.users = users
        """The users who may push. A reload of the configuration may change them."""
        self._wake = wake
        self._closing = False
        self._watchers: set[asyncio.Event] = set()

    def close(self) -> None:
        """End every stream: flexod stops."""
        self._closing = True
        for watcher in self._watchers:
            watcher.set()

    async def PushDemand(  # noqa: N802
        self, request: pb.PushDemandRequest, context: _Context
    ) -> pb.PushDemandReply:
        """Accept a demand."""
        pushed, user = await self._admitted(context)
        try:
            stale_at = pushed.push(request.servers, request.at, user, time.time())
        except BadPush as error:
            await self._refuse(context, user, error)
        self._wake()
        return pb.PushDemandReply(stale_at=stale_at)

    async def CallBack(  # noqa: N802
        self, request: pb.CallBackRequest, context: _Context
    ) -> pb.CallBackReply:
        """Accept a demand for servers by a deadline."""
        pushed, user = await self._admitted(context)
        asked = Called(
            call_id=request.call_id,
            asked_at=request.asked_at,
            deadline_at=request.deadline_at,
            why=one_line(request.why) or f"called back by {user}",
            nodes=tuple(request.nodes),
            servers=request.servers,
        )
        try:
            taken = pushed.reclaim(asked, time.time())
        except BadPush as error:
            await self._refuse(context, user, error)
        text = _what_happens(taken, request.servers)
        _log.info("servers called back", call=taken.call_id, user=user, what=text, why=taken.why)
        self._wake()
        return pb.CallBackReply(text=text, call_back=_view(taken))

    async def WithdrawCallBack(  # noqa: N802
        self, request: pb.WithdrawCallBackRequest, context: _Context
    ) -> pb.WithdrawCallBackReply:
        """Withdraw an earlier CallBack."""
        pushed, user = await self._admitted(context)
        try:
            pushed.withdraw(request.call_id)
        except BadPush as error:
            await self._refuse(context, user, error)
        _log.info("call back withdrawn", call=request.call_id, user=user)
        self._wake()
        return pb.WithdrawCallBackReply()

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: _Context
    ) -> AsyncGenerator[pb.WatchReply]:
        """Send the newest state whenever it changes. States that the watcher is too slow for are left out."""
        pushed, user = await self._admitted(context)
        news, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell_from_thread() -> None:
            loop.call_soon_threadsafe(news.set)

        self._watchers.add(news)
        try:
            with pushed.listening(tell_from_thread):
                while not self._closing:
                    news.clear()
                    yield _reply(pushed.standing())
                    await news.wait()
        except BadPush as error:
            await self._refuse(context, user, error)
        finally:
            self._watchers.discard(news)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "flexod stops; what is lent stays lent")

    async def _admitted(self, context: _Context) -> tuple[PushedDemand, str]:
        """The receiver of pushes, and the caller's name. If the caller may not push, the call aborts."""
        uid = caller().uid
        user = await asyncio.to_thread(account, uid)
        if uid not in (0, os.getuid()) and user not in self.users:
            text = f"user {user} may not speak for the inference cluster: [loaning] inference_users may"
            if wait_s := self._refusals.wait_s(uid):
                await asyncio.sleep(wait_s)
            self._refusals.note(uid)
            self._log.warning("push denied", user=user, peer=context.peer())
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, text)
        if self._pushed is None:
            text = 'flexod takes no pushes of demand: that needs [loaning] source = "push"'
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        return self._pushed, user

    async def _refuse(self, context: _Context, user: str, error: BadPush) -> NoReturn:
        why = one_line(str(error))  # it may repeat what was pushed
        self._log.warning("push refused", user=user, peer=context.peer(), why=why)
        await _abort(context, _CODES[error.fault], why)


async def _abort(context: _Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)


def _what_happens(taken: Called, asked: int) -> str:
    if not taken.missing:
        return "nothing of that is lent: all of it is yours already"
    number = f"{taken.missing} lent {'server comes' if taken.missing == 1 else 'servers come'} back"
    if taken.nodes:
        home = len(taken.empty)
        return f"{number}; {home} of those named {'is' if home == 1 else 'are'} not lent" if home else number
    return number if taken.servers == asked else f"{number}; no more are lent that do not come back already"


def _reply(standing: LendingStatus) -> pb.WatchReply:
    lent = [
        pb.LentServer(
            node=loan.node,
            since_at=loan.since_at,
            state=loan.state.value,
            deadline_at=loan.deadline_at or 0.0,
        )
        for loan in standing.loans
    ]
    return pb.WatchReply(lent=lent, call_backs=map(_view, standing.called))


def _view(called: Called) -> pb.CallBackView:
    return pb.CallBackView(
        call_id=called.call_id,
        asked_at=called.asked_at,
        deadline_at=called.deadline_at,
        why=called.why,
        nodes=called.nodes,
        servers=called.servers,
        empty=[pb.EmptyServer(node=each.node, at=each.at) for each in called.empty],
        done=not called.missing,
    )
