"""The answers of a flexod that stands by: GetStatus names the active one; all other calls are referred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

import flexo
from flexo.availability.leader_elector import LeaderElector
from flexo_protos.flexods import STANDS_BY_KEY
from flexo_protos.v1 import admin_pb2

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]

STATUS: Final = "/flexo.v1.AdminService/GetStatus"


class StandingBy:
    """Chooses the handler of each call while this flexod stands by, for a ServiceRouter."""

    def __init__(self, availability: Callable[[], admin_pb2.Availability]) -> None:
        """`availability`: returns what this flexod knows of itself and the active one."""
        self._availability = availability

    def __call__(self, call: grpc.HandlerCallDetails) -> _Handler:
        """The handler of `call`."""
        if call.method == STATUS:
            return grpc.unary_unary_rpc_method_handler(
                self._status,
                admin_pb2.GetStatusRequest.FromString,
                admin_pb2.GetStatusReply.SerializeToString,
            )
        return grpc.stream_stream_rpc_method_handler(self._refer)

    async def _status(
        self, request: admin_pb2.GetStatusRequest, context: _Context
    ) -> admin_pb2.GetStatusReply:
        return admin_pb2.GetStatusReply(flexod_version=flexo.__version__, availability=self._availability())

    async def _refer(self, requests: object, context: _Context) -> None:
        about = self._availability()
        active = f"the one at {about.holder} is active" if about.holder else "none is active at present"
        text = f"the flexod at {about.address} stands by; {active}"
        await context.abort(grpc.StatusCode.UNAVAILABLE, text, ((STANDS_BY_KEY, "1"),))


def availability_of(elector: LeaderElector, address: str, hosts: Sequence[str]) -> admin_pb2.Availability:
    """The status of the flexod at `address`, one of those at `hosts`."""
    active = elector.active
    return admin_pb2.Availability(
        address=address,
        active=elector.holds(),
        holder=active.address if active else "",
        epoch=active.term if active else 0,
        since_at=active.since_at if active else 0.0,
        trouble=elector.trouble,
        hosts=hosts,
    )
