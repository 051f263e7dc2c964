"""The gRPC server of flexod: its address, its limits, and all services behind one authentication."""

from __future__ import annotations

import resource
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from flexo.availability.leadership_guard import ALONE, LeadershipGuard
from flexo.service.admin_service import AdminService
from flexo.service.aggregator_service import AggregatorService
from flexo.service.authentication import Authentication
from flexo.service.budgets import STANDARD, Budgets
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService
from flexo.service.lease_service import LeaseService
from flexo_protos import keepalive
from flexo_protos.connections import ConnectionGuard
from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    aggregators_pb2,
    aggregators_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]

MAX_MESSAGE_BYTES = 1 << 20
MAX_CALLS = 1 << 16
"""The most calls at once, streams included. Budgets of hosts and users are used up long before (budgets.py):
at this number gRPC refuses the newest call, of any caller."""
FILES_OF_ITS_OWN = 256
"""The number of open files that flexod keeps from connections: it has to run commands."""
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The calls of one method that wait. gRPC refuses some at random beyond the first number and all
    # beyond the second. Callers try again, which is better than waiting behind a flood.
    ("grpc.server.max_pending_requests", 512),
    ("grpc.server.max_pending_requests_hard_limit", 1024),
    ("grpc.so_reuseport", 0),  # else a second flexod on the same port would get half of the calls
    # A leader whose host has vanished answers no ping. Leaders may send pings by themselves.
    *keepalive.noticing(quiet_s=20.0, answer_s=10.0),
    ("grpc.keepalive_permit_without_calls", 1),
    *keepalive.bearing_pings(every_s=5.0),
    # Nobody has to prove anything to connect, so silent connections are closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 120_000),
)


class AddressUnusable(Exception):
    """flexod cannot listen at its address; the message says why."""


class Services:
    """Services that all answer, or all do not. Generated code registers them here as at a server."""

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """See grpc.aio.Server."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing: these are the same methods, for servers whose services do not change (see
        grpc.aio.Server)."""

    def handler(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of `call`; None: there is no such method."""
        return next((found for each in self._handlers if (found := each.service(call)) is not None), None)


def all_services(
    jobs: JobService,
    admin: AdminService,
    inference: InferenceService,
    aggregators: AggregatorService | None = None,
) -> Services:
    """The services of an active flexod. `aggregators` None: a flexod without pool Aggregators."""
    services = Services()
    server = cast("grpc.aio.Server", services)
    jobs_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)
    leases_pb2_grpc.add_LeaseServiceServicer_to_server(LeaseService(), server)
    if aggregators is not None:
        aggregators_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregators, server)
    return services


class ServiceRouter(grpc.aio.ServerInterceptor, grpc.GenericRpcHandler):
    """Routes each call to the service that may answer it now. For the event loop's thread.

    gRPC takes calls of each registered method from a queue of its own, so that a flood of one method does not
    delay the others. So all methods are registered, with a handler that is never called.
    """

    def __init__(
        self, standing_by: Callable[[grpc.HandlerCallDetails], _Handler | None] = lambda call: None
    ) -> None:
        """`standing_by`: returns the handler of a call while this flexod is not active."""
        self._standing_by = standing_by
        self._services: Services | None = None
        self._leadership: LeadershipGuard = ALONE

    def register(self, server: grpc.aio.Server) -> None:
        """Have `server`, which has this router among its interceptors, take calls of all methods."""
        never: _Handler = grpc.stream_stream_rpc_method_handler(_never)
        for file in (admin_pb2, aggregators_pb2, inference_pb2, jobs_pb2, leases_pb2):
            for service in file.DESCRIPTOR.services_by_name.values():
                methods = {method.name: never for method in service.methods}
                server.add_registered_method_handlers(service.full_name, methods)
        server.add_generic_rpc_handlers((self,))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """See grpc.aio.ServerInterceptor."""
        return self.service(handler_call_details)

    def activate(self, services: Services, leadership: LeadershipGuard) -> None:
        """Let `services` answer, for as long as `leadership` holds."""
        self._services, self._leadership = services, leadership

    def stand_by(self) -> None:
        """Let the services answer no more."""
        self._services = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """See grpc.GenericRpcHandler."""
        if self._services is not None and self._leadership.holds():
            return self._services.handler(handler_call_details)
        return self._standing_by(handler_call_details)


async def _never(requests: object, context: object) -> None:
    raise AssertionError("the router finds the handler of each call")


async def listen(
    address: str,
    authenticator: Authenticator,
    router: ServiceRouter,
    credentials: grpc.ServerCredentials | None = None,
    guard: ConnectionGuard | None = None,
    budgets: Budgets = STANDARD,
) -> grpc.aio.Server:
    """A started server; with `credentials`, over TLS. Raises AddressUnusable."""
    server = grpc.aio.server(
        interceptors=[Authentication(authenticator, budgets, guard), router],
        options=(
            *OPTIONS,
            ("grpc.max_concurrent_streams", budgets.streams_of_a_connection),
            ("grpc.max_allowed_incoming_connections", _most_connections()),
        ),
        maximum_concurrent_rpcs=MAX_CALLS,
    )
    router.register(server)
    _try_to_bind(address)
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AddressUnusable(f"cannot listen on {address}: {error}") from error
    await server.start()
    return server


def check_address(address: str, everywhere: bool, key: str = "[service] address") -> None:
    """Check `address`. Raises AddressUnusable if no host has it, or if it is all interfaces and not
    `everywhere`."""
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressUnusable(f"cannot listen on {address}: {error.strerror or error}") from error
    if not everywhere and any(ip_address(str(info[4][0]).partition("%")[0]).is_unspecified for info in found):
        raise AddressUnusable(
            f"{address} is every network of this host: name the cluster's own interface in"
            f" {key}, or say --every-interface"
        )


def _most_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if files == resource.RLIM_INFINITY else max(files - FILES_OF_ITS_OWN, files // 2)


def _try_to_bind(address: str) -> None:
    """Try to bind `address` before gRPC does. The system's words are better: gRPC keeps them to itself and
    writes its own log."""
    host, port = host_and_port(address)
    for family, kind, protocol, _, endpoint in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(endpoint)
                probe.listen(1)
            except OSError as error:
                text = f"cannot listen on {address}: {error.strerror} (is another flexod running?)"
                raise AddressUnusable(text) from error


def host_and_port(address: str) -> tuple[str, int]:
    """``[::1]:80`` -> ``::1``, 80."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
