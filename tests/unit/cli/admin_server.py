"""An AdminService of a test, served in the test's own process to the `flexo` command."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from flexo_cli import connection
from flexo_protos.credentials import Caller
from flexo_protos.v1 import admin_pb2_grpc


class SayingWho:
    """The authenticator at the process boundary: a credential that is readable, of no worth."""

    def credential(self, method: str) -> str:
        return f"me {method}"

    def verify(self, credential: str, method: str) -> Caller:
        raise NotImplementedError


@contextmanager
def serving(service: admin_pb2_grpc.AdminServiceServicer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`flexo` finds `service` where it looks for flexod, and needs no munged to ask it. Its address.

    Each has an address of its own. gRPC remembers for the whole process that a port could not be reached, and
    an earlier test's port may come again.
    """
    server = grpc.server(futures.ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    host = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    address = f"{host}:{port}"
    monkeypatch.setenv("FLEXO_DAEMON", address)
    monkeypatch.setattr(connection, "new_authenticator", SayingWho)
    yield address
    server.stop(None)
