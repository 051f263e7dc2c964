"""Which sockets are the native core's, and how they are broken."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from horovod_elastic.core import connections

LIMIT = struct.pack("@ll", 20, 0)


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(keep: ExitStack) -> tuple[socket.socket, socket.socket]:
    """A TCP connection's two ends, as a script has them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = keep.enter_context(socket.create_connection(server.getsockname()))
        far = keep.enter_context(server.accept()[0])
    far.settimeout(5)
    return near, far


def as_gloo_does(connection: socket.socket) -> None:
    """Inherited by programs, never blocking, with a time limit."""
    os.set_inheritable(connection.fileno(), True)
    os.set_blocking(connection.fileno(), False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)


def test_what_the_core_connected_is_found_and_broken(keep: ExitStack) -> None:
    before = connections.open_now()
    near, far = connected(keep)
    as_gloo_does(near)
    found = connections.core_since(before)
    assert list(found) == [near.fileno()]
    connections.shut_down(found)
    assert far.recv(1) == b""


def test_what_was_there_before_is_not_the_cores(keep: ExitStack) -> None:
    near, _ = connected(keep)
    as_gloo_does(near)
    assert connections.core_since(connections.open_now()) == {}


@pytest.mark.parametrize(
    "mark", ["nothing", "inherited", "a time limit", "inherited, blocking, a time limit"]
)
def test_what_a_script_opens_meanwhile_is_not_the_cores(keep: ExitStack, mark: str) -> None:
    before = connections.open_now()
    near, far = connected(keep)
    os.set_inheritable(near.fileno(), "inherited" in mark)
    if "limit" in mark:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
    if "blocking" not in mark:
        near.setblocking(False)
    assert connections.core_since(before) == {}
    far.sendall(b"x")
    assert near.recv(1) == b"x"


def test_files_and_local_sockets_are_not_the_cores(keep: ExitStack) -> None:
    before = connections.open_now()
    for local in socket.socketpair():
        as_gloo_does(keep.enter_context(local))
    assert connections.core_since(before) == {}


def test_an_unfinished_build_is_broken_where_it_listens_and_where_it_waits(keep: ExitStack) -> None:
    before = connections.open_now()
    listening = keep.enter_context(socket.create_server(("127.0.0.1", 0)))
    scripts = keep.enter_context(socket.create_server(("127.0.0.1", 0)))
    near, far = connected(keep)
    os.set_inheritable(listening.fileno(), True)
    os.set_inheritable(near.fileno(), True)
    connections.shut_down_unfinished(before)
    with pytest.raises(OSError, match="Invalid argument"):
        listening.accept()
    assert far.recv(1) == b""
    socket.create_connection(scripts.getsockname(), timeout=5).close()


def test_a_number_that_means_another_socket_now_is_left_alone(keep: ExitStack) -> None:
    before = connections.open_now()
    near, _ = connected(keep)
    as_gloo_does(near)
    found = connections.core_since(before)
    number = near.detach()
    other, far = connected(keep)
    os.dup2(other.fileno(), number)
    keep.callback(os.close, number)
    connections.shut_down(found)
    other.sendall(b"x")
    assert far.recv(1) == b"x"


def test_looking_leaves_no_descriptors(keep: ExitStack) -> None:
    near, _ = connected(keep)
    as_gloo_does(near)
    before = connections.open_now()
    connections.core_since({})
    connections.shut_down_unfinished({**before, near.fileno(): 0})
    assert connections.open_now() == before
