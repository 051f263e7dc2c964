"""The gRPC server of flexod: its address, its limits, and all services behind one authentication."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from flexo.availability.mandate import ALONE, Mandate
from flexo.service.admin_service import AdminService
from flexo.service.authentication import Authentication
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService
from flexo.service.lease_service import LeaseService
from flexo_protos import keepalive
from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import admin_pb2_grpc, inference_pb2_grpc, jobs_pb2_grpc, leases_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]

MAX_MESSAGE_BYTES = 1 << 20
MAX_CALLS = 8192
"""At once, streams included: several thousand leaders, and people."""
FILES_OF_ITS_OWN = 256
"""Of those that it may open, flexod keeps so many from connections: it has to run Slurm's commands."""
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # else a second flexod on the same port would get half of the calls
    # A leader whose host has vanished answers no ping; one that pings us by itself is welcome.
    *keepalive.noticing(quiet_s=20.0, answer_s=10.0),
    ("grpc.keepalive_permit_without_calls", 1),
    *keepalive.bearing_pings(every_s=5.0),
    # Nobody has to prove anything to connect: who says nothing does not stay.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 120_000),
)


class AddressUnusable(Exception):
    """flexod cannot listen where it is told to; the message says why."""


class Services:
    """Services that answer, or do not, together. Generated code registers them here as at a server."""

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """See grpc.aio.Server."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """See grpc.aio.Server: the same methods, for servers that do not change what they serve."""

    def handler(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Who answers `call`; None: there is no such method."""
        return next((found for each in self._handlers if (found := each.service(call)) is not None), None)


def all_services(jobs: JobService, admin: AdminService, inference: InferenceService) -> Services:
    """What an active flexod serves."""
    services = Services()
    server = cast("grpc.aio.Server", services)
    jobs_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)
    leases_pb2_grpc.add_LeaseServiceServicer_to_server(LeaseService(), server)
    return services


class Switchboard(grpc.GenericRpcHandler):
    """Hands each call to whoever may answer it now. For the event loop's thread."""

    def __init__(
        self, standing_by: Callable[[grpc.HandlerCallDetails], _Handler | None] = lambda call: None
    ) -> None:
        """`standing_by`: answers while this flexod is not active."""
        self._standing_by = standing_by
        self._services: Services | None = None
        self._mandate: Mandate = ALONE

    def activate(self, services: Services, mandate: Mandate) -> None:
        """`services` answer, for as long as `mandate` holds."""
        self._services, self._mandate = services, mandate

    def stand_by(self) -> None:
        """They do not any more."""
        self._services = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """See grpc.GenericRpcHandler."""
        if self._services is not None and self._mandate.holds():
            return self._services.handler(handler_call_details)
        return self._standing_by(handler_call_details)


async def listen(
    address: str,
    authenticator: Authenticator,
    switchboard: Switchboard,
    credentials: grpc.ServerCredentials | None = None,
) -> grpc.aio.Server:
    """A started server, over TLS if it is given `credentials`. Raises AddressUnusable."""
    server = grpc.aio.server(
        interceptors=[Authentication(authenticator)],
        options=(*OPTIONS, ("grpc.max_allowed_incoming_connections", _most_connections())),
        maximum_concurrent_rpcs=MAX_CALLS,
    )
    server.add_generic_rpc_handlers((switchboard,))
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
    """Raises AddressUnusable for one that no host has, or that is all interfaces though nobody asked."""
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
    """Asks the system first, whose words are better: gRPC keeps them to itself and writes its own log."""
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
