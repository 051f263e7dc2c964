"""Which of several ResourceManagers is called: the one that answered last, else the first that is active."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import cast

import pytest

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn import rest
from flexo_yarn.failover import FailoverClient
from flexo_yarn.ipc.client import Client
from flexo_yarn.ipc.connection import Address
from flexo_yarn.ipc.errors import RemoteError, Unreachable

STANDBY = RemoteError("rm", "org.apache.hadoop.ipc.StandbyException", "not allowed on a standby")


@dataclass
class Server:
    """A pretended client of one server: it answers, or raises what the server does."""

    address: Address
    error: Exception | None = None
    token: Token | None = None
    calls: int = 0
    closed: list[bool] = field(default_factory=list)

    def call(self, method: str, request: object, answer: object) -> object:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.address[0]

    def close(self) -> None:
        self.closed.append(True)


def over(*servers: Server) -> FailoverClient:
    return FailoverClient([cast(Client, server) for server in servers])


def asked(client: FailoverClient) -> str:
    return str(client.call("m", pb.GetQueueInfoRequest(), pb.GetQueueInfoResponse))


def pair(host: str, error: Exception | None) -> tuple[Server, Server]:
    return Server((f"{host}-1", 1), error), Server((f"{host}-2", 1))


@pytest.mark.parametrize("error", [Unreachable("refused"), STANDBY])
def test_where_the_first_is_away_or_on_standby_the_second_answers(error: Exception) -> None:
    first, second = pair(f"a-{type(error).__name__}", error)
    assert asked(over(first, second)) == second.address[0]


def test_the_one_that_answered_last_is_asked_first_by_all_clients_of_a_process() -> None:
    first, second = pair("b", Unreachable("down"))
    asked(over(first, second))
    assert asked(over(first, second)) == "b-2"
    assert (first.calls, second.calls) == (1, 2)
    first.error, second.error = None, Unreachable("down")
    assert asked(over(first, second)) == "b-1"


def test_what_the_active_one_refuses_is_not_asked_of_the_other() -> None:
    refused = RemoteError("rm", "x.ApplicationNotFoundException", "there is none")
    first, second = pair("c", refused)
    with pytest.raises(RemoteError, match="there is none"):
        asked(over(first, second))
    assert second.calls == 0


def test_a_refusal_is_an_answer_too() -> None:
    refused = RemoteError("rm", "x.ApplicationMasterNotRegisteredException", "register first")
    first, second = pair("f", Unreachable("hangs"))
    second.error = refused
    with pytest.raises(RemoteError):
        asked(over(first, second))
    second.error = None
    assert asked(over(first, second)) == "f-2"
    assert first.calls == 1


def test_if_none_answers_the_error_names_all() -> None:
    first, second = pair("d", Unreachable("first is down"))
    second.error = Unreachable("second is down")
    with pytest.raises(Unreachable, match="first is down; second is down"):
        asked(over(first, second))


def test_a_new_token_is_for_all_on_new_connections() -> None:
    first, second = pair("e", None)
    over(first, second).use(Token(kind="new"))
    assert [server.token.kind for server in (first, second) if server.token] == ["new", "new"]
    assert first.closed == second.closed == [True]


@contextmanager
def web(state: str) -> Iterator[Address]:
    """A pretended ResourceManager's REST."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"clusterInfo": {"haState": state}}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()


def test_by_rest_one_on_standby_does_not_speak_for_the_cluster() -> None:
    with web("STANDBY") as standby, web("ACTIVE") as active:
        answer = rest.get_from_active((standby, active), "info", {}, 10)
        assert answer["clusterInfo"]["haState"] == "ACTIVE"
        with pytest.raises(Unreachable, match="is on standby"):
            rest.get_from_active((standby,), "info", {}, 10)
