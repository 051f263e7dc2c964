"""The ResourceManager's REST interface with Kerberos: both sides prove who they are."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flexo_yarn import rest
from flexo_yarn.ipc.errors import Refused, Unreachable
from flexo_yarn.kerberos import SPNEGO, Kerberos, Tickets


class Context:
    """A security context that the right proof completes."""

    complete = False

    def step(self, token: bytes | None) -> bytes:
        self.complete = token == b"proof"
        return b"ticket"

    def wrap(self, message: bytes, *, encrypt: bool) -> bytes:
        raise NotImplementedError

    def unwrap(self, protected: bytes) -> tuple[bytes, bool]:
        raise NotImplementedError


class FakeTickets(Tickets):
    """Tickets whose contexts need no Kerberos."""

    def context(self, server: str, mechanism: str = "") -> Context:
        assert (server, mechanism) == ("HTTP/rm1@EXAMPLE.COM", SPNEGO)
        return Context()


KERBEROS = Kerberos(FakeTickets(), "rm/rm1@EXAMPLE.COM")


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A web server that believes a ticket. Its own proof is the part of the path after "/proof="."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ticket = base64.b64encode(b"ticket").decode()
            self.send_response(200 if self.headers["Authorization"] == f"Negotiate {ticket}" else 401)
            _, _, proof = self.path.partition("proof-")
            if proof := proof.partition("?")[0]:
                self.send_header("WWW-Authenticate", f"Negotiate {base64.b64encode(proof.encode()).decode()}")
            self.end_headers()
            self.wfile.write(b'{"answer": 1}')

        def log_message(self, *_: object) -> None: ...

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def test_a_ticket_goes_with_the_question_and_the_servers_proof_with_the_answer(
    server: ThreadingHTTPServer,
) -> None:
    address = ("127.0.0.1", server.server_port)
    assert rest.get(address, "proof-proof", {}, 5, KERBEROS) == {"answer": 1}


@pytest.mark.parametrize("proof", ["", "guessed"])
def test_an_answer_without_the_servers_proof_is_not_believed(server: ThreadingHTTPServer, proof: str) -> None:
    with pytest.raises(Refused, match="has not proved"):
        rest.get(("127.0.0.1", server.server_port), f"proof-{proof}", {}, 5, KERBEROS)


def test_without_a_ticket_a_cluster_with_kerberos_says_so(server: ThreadingHTTPServer) -> None:
    with pytest.raises(Unreachable, match="401"):
        rest.get(("127.0.0.1", server.server_port), "proof-proof", {}, 5)
