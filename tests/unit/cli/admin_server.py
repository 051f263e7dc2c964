"""An AdminService of a test, served in the test's own process to the `flexo` command."""

from __future__ import annotations

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
    """`flexo` finds `service` where it looks for flexod, and needs no munged to ask it. Its address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    address = f"127.0.0.1:{port}"
    monkeypatch.setenv("FLEXO_DAEMON", address)
    monkeypatch.setattr(connection, "new_authenticator", SayingWho)
    yield address
    server.stop(None)
