"""Connections that ask for nothing keep nobody out: neither viewers by TCP, nor those behind the proxy."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import httpx2
import pytest
from listening_web import HEADER, Served, web_server
from signed_in import URL, until

from flexo_protos.web_login import purpose
from flexo_web import connections
from flexo_web.refusals import RefusalLog

MOST = 20
USER = "games"
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:6837\r\n"
WHOLE = HALF + b"\r\n"
SHORT_S = 0.3
WITHIN_S = 30.0


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A flexo-web that has few connections."""
    monkeypatch.setattr(connections, "CONNECTIONS", MOST)
    with web_server(tmp_path) as served:
        yield served


def within(state: connections._State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections may be in a state for a short time alone."""
    monkeypatch.setitem(connections._BOUNDS_S, state, SHORT_S)


@contextmanager
def opened(web: Served, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections by TCP that have sent this."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(socket.create_connection(("127.0.0.1", web.port), 30)) for _ in range(count)
        ]
        for connection in made:
            connection.sendall(sent)
        yield made


def is_over(connection: socket.socket) -> bool:
    """Whether flexo-web ends a connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def assert_it_ends(connection: socket.socket, sent: bytes, every_s: float = 0.0) -> None:
    """flexo-web ends a connection while this is sent again and again."""
    began = time.monotonic()
    with suppress(ConnectionError):
        while time.monotonic() - began < WITHIN_S:
            connection.sendall(sent)
            time.sleep(every_s)
        pytest.fail("it does not end")


def streams(web: Served, uid: int, count: int, stack: ExitStack) -> list[httpx2.Response]:
    """Answers of pages of a user that a browser keeps open."""
    browser = stack.enter_context(
        httpx2.Client(base_url=f"http://127.0.0.1:{web.port}", headers={"host": "127.0.0.1:6837"}, timeout=30)
    )
    made = browser.post("/links", headers={"flexo-munge": f"{uid} {purpose(URL)}"}).json()["link"]
    browser.post(made.removeprefix(URL), headers={"origin": URL})
    return [stack.enter_context(browser.stream("GET", "/updates/")) for _ in range(count)]


@pytest.mark.parametrize("sent", [b"", HALF, WHOLE], ids=["nothing", "half a request", "a request"])
def test_more_connections_than_are_allowed_keep_nobody_out_and_are_logged_once(
    web: Served, sent: bytes
) -> None:
    with opened(web, 5 * MOST, sent):
        until(lambda: web.by_tcp()[0] == 401)  # once those who asked have their answers
        assert web.by_proxy(USER)[0] == 200
        assert web.by_tcp()[0] == 401
    assert len(web.refusals) == 1
    assert f"the TCP port has {MOST} connections" in web.refusals[0]


def test_a_limit_that_is_reached_again_and_again_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 0)
    lines, now = [], [0.0]
    share = connections.Share("the TCP port", RefusalLog(lines.append), lambda: now[0])
    for seconds in (0, 1, 59, 61, 62):
        now[0] = float(seconds)
        assert not share.enter(Mock())
    assert len(lines) == 2


def test_the_connection_that_has_waited_longest_makes_room(web: Served) -> None:
    with opened(web, MOST) as silent:
        assert web.by_tcp()[0] == 401
        assert is_over(silent[0])
        silent[-1].sendall(WHOLE)
        assert b"401" in silent[-1].recv(100)


def test_open_pages_are_never_ended_for_others_and_beyond_the_limit_the_answer_is_503(web: Served) -> None:
    with ExitStack() as stack:
        held = streams(web, 1, MOST, stack)
        assert {stream.status_code for stream in held} == {200}
        assert web.by_tcp()[0] == 503
        assert web.by_proxy(USER)[0] == 200
        assert all(next(stream.iter_lines()) for stream in held)
        assert len(web.refusals) == 1


@pytest.mark.parametrize("sent", [b"", HALF, WHOLE + HALF], ids=["nothing", "half", "half of the second"])
def test_a_connection_that_completes_no_request_in_time_is_ended(
    web: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    within(connections._State.WAITS, monkeypatch)
    with opened(web, 1, sent) as (slow,):
        if sent:
            assert_it_ends(slow, b"x", SHORT_S / 10)  # a byte now and then gains no time
        else:
            assert is_over(slow)
    assert web.refusals == []


def test_a_stream_without_news_is_not_ended(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    within(connections._State.WAITS, monkeypatch)
    within(connections._State.SENDS, monkeypatch)
    with ExitStack() as stack:
        (stream,) = streams(web, 1, 1, stack)
        time.sleep(4 * SHORT_S)
        stream.close()
    assert web.by_tcp()[0] == 401


def test_who_asks_and_never_reads_is_ended(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    within(connections._State.SENDS, monkeypatch)
    with socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect(("127.0.0.1", web.port))
        greedy.settimeout(30)
        request = WHOLE.replace(b"GET / ", b"GET /static/web.js ")
        assert_it_ends(greedy, request)


def test_a_slow_reader_gets_all_of_an_answer(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    within(connections._State.WAITS, monkeypatch)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", web.port))
        slow.settimeout(30)
        request = WHOLE.replace(b"GET / ", b"GET /static/web.js ")
        slow.sendall(request * 200)
        time.sleep(4 * SHORT_S)
        got = b""
        while got.count(b"keepUpToDate();") < 200:
            part = slow.recv(65536)
            assert part, "the answers end before their end"
            got += part


def test_the_header_of_the_proxy_is_believed_on_its_share_alone(web: Served) -> None:
    with opened(web, 2 * MOST, HALF):
        assert web.by_tcp(**{HEADER: USER})[0] == 403
