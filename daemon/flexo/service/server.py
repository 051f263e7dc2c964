"""The gRPC server of flexod: its address, its limits, and all services behind one authentication."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import grpc.aio

from flexo.service.admin_service import AdminService
from flexo.service.authentication import Authentication
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService
from flexo.service.lease_service import LeaseService
from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import admin_pb2_grpc, inference_pb2_grpc, jobs_pb2_grpc, leases_pb2_grpc

MAX_MESSAGE_BYTES = 1 << 20
MAX_CALLS = 8192
"""At once, streams included: several thousand leaders, and people."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # else a second flexod on the same port would get half of the calls
    # A leader whose host has vanished answers no ping; one that pings us by itself is welcome.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


class AddressUnusable(Exception):
    """flexod cannot listen where it is told to; the message says why."""


async def listen(
    address: str,
    authenticator: Authenticator,
    jobs: JobService,
    admin: AdminService,
    inference: InferenceService,
) -> grpc.aio.Server:
    """A started server. Raises AddressUnusable."""
    server = grpc.aio.server(
        interceptors=[Authentication(authenticator)], options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS
    )
    jobs_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server)
    leases_pb2_grpc.add_LeaseServiceServicer_to_server(LeaseService(), server)
    _try_to_bind(address)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise AddressUnusable(f"cannot listen on {address}: {error}") from error
    await server.start()
    return server


def check_address(address: str, everywhere: bool) -> None:
    """Raises AddressUnusable for one that no host has, or that is all interfaces though nobody asked."""
    host, port = _parts(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressUnusable(f"cannot listen on {address}: {error.strerror or error}") from error
    if not everywhere and any(ip_address(str(info[4][0]).partition("%")[0]).is_unspecified for info in found):
        raise AddressUnusable(
            f"{address} is every network of this host: name the cluster's own interface in"
            " [service] address, or say --every-interface"
        )


def _try_to_bind(address: str) -> None:
    """Asks the system first, whose words are better: gRPC keeps them to itself and writes its own log."""
    host, port = _parts(address)
    for family, kind, protocol, _, endpoint in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(endpoint)
                probe.listen(1)
            except OSError as error:
                text = f"cannot listen on {address}: {error.strerror} (is another flexod running?)"
                raise AddressUnusable(text) from error


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
