"""A connection that can be cut: what gets through it when."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest
from chaos.system.link import Link

pytestmark = pytest.mark.thorough

SHORT_S, LONG_S = 0.2, 10.0


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def link(echo: int) -> Iterator[Link]:
    link = Link(echo)
    yield link
    link.close()


def connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=LONG_S)


def test_an_open_link_is_not_noticed(link: Link) -> None:
    with connect(link) as one, connect(link) as two:
        for client, word in ((one, b"first"), (two, b"second"), (one, b"third")):
            client.sendall(word)
            assert client.recv(100) == word
        one.shutdown(socket.SHUT_WR)
        assert one.recv(100) == b""


def test_a_cut_resets_what_is_connected_and_what_connects_until_it_is_opened(link: Link) -> None:
    with connect(link) as client:
        client.sendall(b"before")
        assert client.recv(100) == b"before"
        link.cut()
        assert _gone(client)
    with connect(link) as client:
        assert _gone(client)
    link.open()
    with connect(link) as client:
        client.sendall(b"after")
        assert client.recv(100) == b"after"


def test_a_stall_tells_nobody_and_what_was_sent_arrives_afterwards(link: Link) -> None:
    with connect(link) as old:
        old.sendall(b"before")
        assert old.recv(100) == b"before"
        link.stall()
        with connect(link) as new:
            for client in (old, new):
                client.sendall(b"meanwhile")
                client.settimeout(SHORT_S)
                with pytest.raises(TimeoutError):
                    client.recv(100)
                client.settimeout(LONG_S)
            link.open()
            assert (old.recv(100), new.recv(100)) == (b"meanwhile", b"meanwhile")


def test_nobody_behind_the_link_is_like_a_cut() -> None:
    nowhere = Link(1)
    with connect(nowhere) as client:
        assert _gone(client)
    nowhere.close()


def _gone(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True
