"""The service for pool Aggregators: one stream for each, from the Aggregator.

A pool Aggregator sees the gradients of all its jobs. So only root, flexod's own account and the users in
[aggregation] pool_users may run one.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

import flexo
from flexo.availability.leadership_guard import ALONE, LeadershipGuard
from flexo.model.aggregation import PoolAggregator
from flexo.service import pool_wire
from flexo.service.aggregator_registry import AggregatorConnection, AggregatorRegistry
from flexo.service.authentication import account, caller, principal_of
from flexo.service.budgets import STANDARD, Budgets, RefusalLimits, TokenBucket
from flexo.service.logs import LimitedLog
from flexo.service.streams import (
    Refused,
    StreamWriter,
    malformed_is_refused,
    read,
    unless_quiet,
    until_one_ends,
    within,
)
from flexo_protos.v1 import aggregators_pb2, aggregators_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    from flexo.service.streams import Context

_LOGGED_BURST: Final = 100.0


@dataclass(frozen=True, slots=True)
class PoolTimeouts:
    """flexod's time-outs for Aggregators. Seconds."""

    hello_within_s: float = 10.0
    quiet_s: float = 15.0
    """An Aggregator that has sent nothing for this time counts as gone. It sends a status every second."""
    write_within_s: float = 30.0


class AggregatorService(aggregators_pb2_grpc.AggregatorServiceServicer):
    """See protos/flexo/v1/aggregators.proto."""

    def __init__(
        self,
        registry: AggregatorRegistry | None,
        users: frozenset[str],
        timeouts: PoolTimeouts | None = None,
        leadership: LeadershipGuard = ALONE,
        budgets: Budgets = STANDARD,
    ) -> None:
        """`registry` None: [aggregation] is not enabled. `users`: may run Aggregators, besides root and
        flexod's account."""
        self._registry = registry
        self._users = users
        self._timeouts = PoolTimeouts() if timeouts is None else timeouts
        self._leadership = leadership
        self._budgets = budgets
        self._refusals = RefusalLimits(budgets)
        self._closing = asyncio.Event()
        self._log = LimitedLog(_LOGGED_BURST)

    def close(self) -> None:
        """End every stream: flexod stops."""
        self._closing.set()

    async def Attach(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one Aggregator, from its hello to its end."""
        uid = caller().uid
        try:
            registry = await self._admitted(uid)
            connection = AggregatorConnection(await self._greet(uid, context), context.peer())
            await self._converse(registry, connection, context)
        except Refused as refusal:
            if refusal.code is not grpc.StatusCode.UNAVAILABLE:  # else it is flexod that cannot go on
                self._refusals.note(uid)
            self._log.warning("Aggregator's stream closed", uid=uid, peer=context.peer(), why=str(refusal))
            await context.abort(refusal.code, str(refusal))
        except asyncio.CancelledError:
            return  # the connection has broken; passed on, gRPC would print a traceback

    async def _admitted(self, uid: int) -> AggregatorRegistry:
        """The registry, if this user may run pool Aggregators. Raises Refused."""
        if wait_s := self._refusals.wait_s(uid):
            await asyncio.sleep(wait_s)
        user = await asyncio.to_thread(account, uid)
        if uid not in (0, os.getuid()) and user not in self._users:
            text = f"user {user} may not run pool Aggregators: [aggregation] pool_users names who may"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, text)
        if self._registry is None:
            text = "flexod accepts no pool Aggregators: that needs [aggregation] enabled = true"
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
        return self._registry

    async def _greet(self, uid: int, context: Context) -> PoolAggregator:
        raw = await within(self._timeouts.hello_within_s, "AggregatorHello", read(context))
        message = None if raw is None else _parsed(raw)
        if message is None or message.WhichOneof("body") != "hello":
            text = "the first message of an Aggregator is AggregatorHello"
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, text)
        with malformed_is_refused():
            return pool_wire.introduced(message.hello, principal_of(uid))

    async def _converse(
        self, registry: AggregatorRegistry, connection: AggregatorConnection, context: Context
    ) -> None:
        writer = StreamWriter(context)
        registry.attach(connection)
        try:
            await until_one_ends(
                self._hear(registry, connection, context),
                self._tell(connection, writer),
                self._until_replaced(connection),
                self._until_closed(),
            )
        finally:
            registry.detach(connection)
            await writer.finish()

    async def _hear(
        self, registry: AggregatorRegistry, connection: AggregatorConnection, context: Context
    ) -> None:
        """Process statuses until the Aggregator closes the stream."""
        messages = TokenBucket(self._budgets.messages_per_s, self._budgets.messages_burst)
        while True:
            raw = await unless_quiet(read(context), "status", self._timeouts.quiet_s / 3, 3)
            if raw is None or connection.replaced_by:
                return
            if not messages.take():
                text = f"more than {self._budgets.messages_per_s:.0f} messages a second from one Aggregator"
                raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            message = _parsed(raw)
            match message.WhichOneof("body"):
                case "status":
                    with malformed_is_refused():
                        registry.update(
                            connection, pool_wire.with_status(connection.aggregator, message.status)
                        )
                case "hello":
                    raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "a second AggregatorHello")
                case _:
                    pass  # a newer Aggregator sends a message that this flexod does not know

    async def _tell(self, connection: AggregatorConnection, writer: StreamWriter) -> None:
        """Send the welcome, then each eviction."""
        welcome = aggregators_pb2.AggregatorWelcome(flexod_version=flexo.__version__)
        message = aggregators_pb2.ToAggregator(welcome=welcome)
        while True:
            if not self._leadership.holds():
                raise Refused(grpc.StatusCode.UNAVAILABLE, "this flexod is not the active one any more")
            message.epoch = self._leadership.epoch
            await writer.say_within(self._timeouts.write_within_s, message, "Aggregator")
            message = pool_wire.to_aggregator(await connection.next_to_tell())

    async def _until_replaced(self, connection: AggregatorConnection) -> None:
        await connection.until_replaced()
        text = f"replaced: Aggregator {connection.aggregator.name} has attached from {connection.replaced_by}"
        raise Refused(grpc.StatusCode.ABORTED, text)

    async def _until_closed(self) -> None:
        await self._closing.wait()
        raise Refused(grpc.StatusCode.UNAVAILABLE, "flexod stops; assignments stand")


def _parsed(raw: bytes) -> aggregators_pb2.FromAggregator:
    try:
        return aggregators_pb2.FromAggregator.FromString(raw)
    except DecodeError as error:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
