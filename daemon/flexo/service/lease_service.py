"""Serves the leases of jobs' leaders (Amoeba, Algorithm 1), from a table in memory.

flexod does not ask the cluster whose job it is. A lease is kept under the user whom MUNGE proves, so that
nobody reaches another user's. So elections go on while the cluster is away, and are quick when a job has
begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
import grpc.aio

from flexo.service.authentication import caller
from flexo_protos.leader_leases import table
from flexo_protos.v1 import leases_pb2, leases_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]

GRACE_S = 10.0
"""The time after a start in which only earlier holders get their leases. Leaders refresh, and reconnect,
every few seconds."""

_Request = TypeVar("_Request")


class LeaseService(leases_pb2_grpc.LeaseServiceServicer):
    """See protos/flexo/v1/leases.proto."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        # Terms start at the clock's milliseconds. An earlier flexod drew at most one a millisecond, so its
        # are lower.
        self._table = table.LeaseTable(time.monotonic(), grace_s=grace_s, first_term=int(time.time() * 1000))

    async def Acquire(  # noqa: N802
        self, request: leases_pb2.AcquireRequest, context: _Context
    ) -> leases_pb2.Lease:
        """Take a vacant lease, or refresh the caller's own."""
        return await self._answer(table.answer_acquire, request, context)

    async def Look(  # noqa: N802
        self, request: leases_pb2.LookRequest, context: _Context
    ) -> leases_pb2.Lease:
        """The lease as it is, which names the leader."""
        return await self._answer(table.answer_look, request, context)

    async def Release(  # noqa: N802
        self, request: leases_pb2.ReleaseRequest, context: _Context
    ) -> leases_pb2.Lease:
        """Give the caller's own lease up."""
        return await self._answer(table.answer_release, request, context)

    async def _answer(
        self,
        answer: Callable[[table.LeaseTable, int, _Request, float], leases_pb2.Lease],
        request: _Request,
        context: _Context,
    ) -> leases_pb2.Lease:
        try:
            return answer(self._table, caller().uid, request, time.monotonic())
        except table.BadRequest as error:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except table.TooManyLeases as error:
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))


async def _refuse(context: _Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
