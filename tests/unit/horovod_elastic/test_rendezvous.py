"""The key-value store at which the core meets, through real HTTP."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import PIPE

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from horovod_elastic import rendezvous
from horovod_elastic.rendezvous import MAX_VALUE_BYTES, Rendezvous

HOST = "127.0.0.1"
BOUND_S = 60.0


@pytest.fixture(autouse=True)
def short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 0.2)
    monkeypatch.setattr(rendezvous, "SWEEP_S", 0.05)


@pytest.fixture
def server() -> Iterator[Rendezvous]:
    running = Rendezvous(HOST, {"n1-17:0": "0,2,0,1,0,2", "n2-18:0": "1,2,0,1,1,2"})
    yield running
    running.close()


def ask(server: Rendezvous, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=BOUND_S)
    connection.request(method, path, body)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def held(server: Rendezvous) -> int:
    """Requests that wait for a key."""
    return server._store._held_count


def members(server: Rendezvous) -> set[str]:
    """Who waits for the other members."""
    return set(server._store._members)


def test_each_worker_is_told_its_ranks(server: Rendezvous) -> None:
    assert ask(server, "GET", "/rank_and_size/n2-18:0") == (200, b"1,2,0,1,1,2")
    assert ask(server, "GET", "/rank_and_size/n3-1:0")[0] == 404


def test_what_was_put_can_be_got_and_nothing_else(server: Rendezvous) -> None:
    assert ask(server, "GET", "/global_/0") == (404, b"")
    assert ask(server, "PUT", "/global_/0", b"\x00\xffaddress")[0] == 200
    assert ask(server, "GET", "/global_/0") == (200, b"\x00\xffaddress")
    assert ask(server, "GET", "/local_/0")[0] == 404
    assert ask(server, "PUT", "/global_/0", b"")[0] == 200
    assert ask(server, "GET", "/global_/0") == (200, b"")


def test_ranks_cannot_be_overwritten(server: Rendezvous) -> None:
    ask(server, "PUT", "/rank_and_size/n1-17:0", b"7,8,0,1,0,2")
    assert ask(server, "GET", "/rank_and_size/n1-17:0") == (200, b"0,2,0,1,0,2")


def test_a_request_for_a_key_is_held_until_it_is_put(
    server: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 60.0)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, server, "GET", "/global_/1") for _ in range(8)]
        wait_until(lambda: held(server) == 8)
        assert not any(answer.done() for answer in waiting)
        assert ask(server, "PUT", "/global_/1", b"address") == (200, b"")
        assert [answer.result(BOUND_S) for answer in waiting] == [(200, b"address")] * 8


def test_a_request_is_not_held_for_ever(server: Rendezvous) -> None:
    began = time.monotonic()
    assert ask(server, "GET", "/global_/1") == (404, b"")
    assert time.monotonic() - began >= 0.2


def test_members_are_answered_when_all_wait(server: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 60.0)
    assert ask(server, "GET", "/members/n3-1:0")[0] == 404
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "GET", "/members/n1-17:0")
        wait_until(lambda: members(server) == {"n1-17:0"})
        assert not waiting.done()
        assert ask(server, "GET", "/members/n2-18:0") == (200, b"")
        assert waiting.result(BOUND_S) == (200, b"")


def test_a_member_that_has_gone_is_waited_for_again(
    server: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 60.0)
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as gone:
        gone.sendall(b"GET /members/n1-17:0 HTTP/1.1\r\n\r\n")
        wait_until(lambda: members(server) == {"n1-17:0"})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "GET", "/members/n2-18:0")
        wait_until(lambda: members(server) == {"n2-18:0"})
        assert not waiting.done()
        assert ask(server, "GET", "/members/n1-17:0")[0] == 200
        assert waiting.result(BOUND_S)[0] == 200


def test_a_member_waits_no_longer_than_others(server: Rendezvous) -> None:
    assert ask(server, "GET", "/members/n1-17:0")[0] == 404


def test_closing_answers_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 60.0)
    server = Rendezvous(HOST, {})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "GET", "/global_/1")
        wait_until(lambda: held(server) == 1)
        server.close()
        server.close()
        assert waiting.result(BOUND_S) == (404, b"")


def test_the_number_of_held_requests_is_bounded(server: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 60.0)
    monkeypatch.setattr(rendezvous, "MAX_OPEN", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "GET", "/a/1")
        wait_until(lambda: held(server) == 1)
        assert ask(server, "GET", "/a/1") == (404, b"")
        ask(server, "PUT", "/a/1", b"x")
        assert waiting.result(BOUND_S) == (200, b"x")


def test_who_does_not_know_the_secret_gets_and_puts_nothing() -> None:
    server = Rendezvous(HOST, {"n1-17:0": "0,1,0,1,0,1"}, secret="5ecret")
    host, _, rest = server.address.partition(":")
    assert host == HOST
    known = f"/{rest.partition('/')[2]}:{server.port}"  # as the core: http://<address>:<port>/<scope>/<key>
    assert ask(server, "PUT", f"{known}/a/b", b"x")[0] == 200
    assert ask(server, "GET", f"{known}/a/b") == (200, b"x")
    assert ask(server, "GET", f"{known}/rank_and_size/n1-17:0")[0] == 200
    for path in ("/a/b", "/rank_and_size/n1-17:0", f"/wrong:{server.port}/a/b"):
        assert ask(server, "GET", path)[0] == 404
        assert ask(server, "PUT", path, b"y")[0] == 404
    assert ask(server, "GET", f"{known}/a/b") == (200, b"x")
    server.close()


def test_a_request_that_arrives_in_pieces_is_put_together(server: Rendezvous) -> None:
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as connection:
        for piece in (b"PUT /a/b HT", b"TP/1.1\r\nContent-Le", b"ngth: 4\r\n\r", b"\nva", b"lu"):
            connection.sendall(piece)
            time.sleep(0.02)
        assert connection.recv(100).startswith(b"HTTP/1.0 200 ")
    assert ask(server, "GET", "/a/b") == (200, b"valu")


def test_endless_headers_are_refused(server: Rendezvous) -> None:
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as connection:
        connection.sendall(b"GET /a/b HTTP/1.1\r\n" + b"x" * rendezvous.MAX_HEADER_BYTES)
        assert b" 431 " in connection.recv(100)


def test_a_delete_is_answered(server: Rendezvous) -> None:
    assert ask(server, "DELETE", "/global_/0")[0] == 200


@pytest.mark.parametrize("length", [str(MAX_VALUE_BYTES + 1), "-1", "many", "", "\u00b2", "1" * 5000])
def test_values_without_a_sensible_length_are_refused_unread(server: Rendezvous, length: str) -> None:
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as connection:
        connection.sendall(f"PUT /a/b HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
        assert b" 413 " in connection.recv(100)
    assert ask(server, "GET", "/a/b")[0] == 404


@pytest.mark.parametrize("line", ["GET /", "PUT /wrong:1/a/b", "GET", ""])
def test_a_strangers_endless_content_length_ends_nothing(line: str) -> None:
    server = Rendezvous(HOST, {"n1-17:0": "0,1,0,1,0,1"}, secret="5ecret")
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as stranger:
        stranger.sendall(f"{line} HTTP/1.1\r\nContent-Length: {'1' * 5000}\r\n\r\n".encode())
        assert b" 404 " in stranger.recv(100)
    assert ask(server, "GET", f"/5ecret:{server.port}/rank_and_size/n1-17:0")[0] == 200
    server.close()


HEADS = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b"GET ", b"PUT ", b"/5ecret:%d/", b"members/n1-17:0", b"a/b", b" HTTP/1.1\r\n", b"\r\n\r\n"]
        ),
        st.builds(lambda text: b"Content-Length: " + text.encode("latin-1") + b"\r\n", st.text(max_size=30)
        .map(lambda text: "".join(each for each in text if ord(each) < 256))),
        st.integers(0, 6000).map(lambda digits: b"content-length:" + b"7" * digits + b"\r\n"),
    ),
    max_size=8,
).map(b"".join)  # fmt: skip


@pytest.fixture(scope="module")
def secret_server() -> Iterator[tuple[Rendezvous, list[Exception]]]:
    failures: list[Exception] = []
    running = Rendezvous(HOST, {"n1-17:0": "0,1,0,1,0,1"}, "5ecret", failures.append)
    yield running, failures
    running.close()


@settings(max_examples=examples(150), deadline=None)
@given(said=HEADS, more=HEADS)
def test_whatever_a_stranger_says_members_are_answered_and_no_error_is_caught(
    secret_server: tuple[Rendezvous, list[Exception]], said: bytes, more: bytes
) -> None:
    server, failures = secret_server
    prefix = b"/5ecret:%d/" % server.port
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as stranger:
        with suppress(OSError):
            for part in (said, more):
                stranger.sendall(part.replace(b"/5ecret:%d/", prefix))
        path = f"{prefix.decode()}rank_and_size/n1-17:0"
        assert ask(server, "GET", path) == (200, b"0,1,0,1,0,1")
    assert failures == []


def test_an_error_over_one_request_ends_that_one_and_is_told_once(
    server: Rendezvous, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("of the test")

    with monkeypatch.context() as patched:
        patched.setattr(rendezvous, "parse_head", broken)
        for _ in range(3):
            assert ask(server, "GET", "/a/b")[0] == 400
    assert ask(server, "GET", "/rank_and_size/n1-17:0")[0] == 200
    assert capfd.readouterr().err.count("ArithmeticError: of the test") == 1


def test_a_server_that_fails_tells_so_and_lets_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("of the test")

    failures: list[Exception] = []
    monkeypatch.setattr(rendezvous, "HOLD_S", 60.0)
    monkeypatch.setattr(rendezvous, "SWEEP_S", 0.5)
    server = Rendezvous(HOST, {"n1-17:0": "0,2,0,1,0,2", "n2-18:0": "1,2,0,1,1,2"}, "", failures.append)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "GET", "/members/n1-17:0")
        wait_until(lambda: members(server) == {"n1-17:0"})
        monkeypatch.setattr(rendezvous, "drop_silent", broken)
        assert waiting.result(BOUND_S)[0] == 404
    wait_until(lambda: failures)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, server.port), timeout=BOUND_S)
    server.close()


def test_the_largest_value_is_taken_and_given(server: Rendezvous) -> None:
    assert ask(server, "PUT", "/a/b", b"x" * MAX_VALUE_BYTES)[0] == 200
    assert ask(server, "GET", "/a/b") == (200, b"x" * MAX_VALUE_BYTES)


def test_the_number_of_keys_is_bounded(server: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_KEYS", 2)
    assert [ask(server, "PUT", f"/a/{n}", b"x")[0] for n in range(3)] == [200, 200, 507]


WITHOUT_DESCRIPTORS = """
import os, resource, sys, time
from horovod_elastic.rendezvous import Rendezvous
server = Rendezvous("127.0.0.1", {"n1-17:0": "0,1,0,1,0,1"})
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), hard))
print(server.port, flush=True)
sys.stdin.readline()
before = time.process_time()
time.sleep(1)
print(time.process_time() - before, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
sys.stdin.readline()
server.close()
"""


@pytest.mark.processes
def test_without_file_descriptors_it_rests_and_answers_when_there_are_some() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS], stdin=PIPE, stdout=PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        caller = http.client.HTTPConnection(HOST, int(process.stdout.readline()), timeout=BOUND_S)
        caller.request("GET", "/rank_and_size/n1-17:0")
        process.stdin.write("it is called\n")
        cpu_s = float(process.stdout.readline())
        assert caller.getresponse().read() == b"0,1,0,1,0,1"
        process.stdin.write("it has answered\n")
    assert cpu_s < 0.5  # a loop that does not rest takes the whole second
    assert process.returncode == 0


def test_a_client_that_hangs_up_says_nothing_in_the_jobs_output(
    server: Rendezvous, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection((HOST, server.port), timeout=BOUND_S) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.sendall(b"PUT /a/b HTTP/1.0\r\nContent-Length: 9\r\n\r\nhalf")
    ask(server, "GET", "/a/b")
    assert capfd.readouterr() == ("", "")


def test_a_silent_client_keeps_nobody_waiting(server: Rendezvous) -> None:
    with socket.create_connection((HOST, server.port), timeout=BOUND_S):
        assert ask(server, "GET", "/a/b")[0] == 404


def test_it_listens_on_the_given_address_only(server: Rendezvous) -> None:
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server.port), timeout=BOUND_S)


def test_closing_closes_the_socket_and_ends_the_thread() -> None:
    before = threading.active_count()
    server = Rendezvous(HOST, {})
    port = server.port
    server.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, port), timeout=BOUND_S)
    assert threading.active_count() <= before


def test_starting_looks_up_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda host: pytest.fail("a look-up that may take a DNS timeout"))
    Rendezvous(HOST, {}).close()
