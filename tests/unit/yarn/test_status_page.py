"""A job's page: what it holds, as a page and as JSON, and nothing that a name could break."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request

import pytest

from horovod_elastic.platforms.yarn import status_page
from horovod_elastic.platforms.yarn.status_page import JobStatus, Part, StatusPage

STATUS = JobStatus(
    "application_1_0001",
    2,
    8,
    (
        Part("base", "h1", 1, "running"),
        Part("satellite", "<h2>", 3, "running"),
        Part("base", "h3", 1, "starting"),
    ),
)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_the_page_and_its_json_say_the_same() -> None:
    url = StatusPage("127.0.0.1", lambda: STATUS).url
    page, found = read(url), json.loads(read(f"{url}json"))
    assert "&lt;h2&gt;" in page
    assert "<h2>" not in page
    assert "4 workers" in page
    assert (found["workers"], found["minimum"], found["maximum"]) == (4, 2, 8)
    assert found["parts"][1] == {"part": "satellite", "node": "<h2>", "workers": 3, "state": "running"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(f"{url}etc/passwd")


def test_callers_that_never_end_their_request_take_no_more_than_their_places_and_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_page, "REQUEST_WITHIN_S", 1.0)
    monkeypatch.setattr(status_page, "CALLERS", 3)
    page = StatusPage("127.0.0.1", lambda: STATUS)
    host, _, port = page.url.removeprefix("http://").strip("/").partition(":")
    slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(3)]
    for each in slow:
        each.sendall(b"GET / HT")
    time.sleep(0.3)
    with pytest.raises(OSError, match=r"reset|closed|timed out"):
        read(page.url)
    assert [each.recv(1) for each in slow] == [b"", b"", b""]
    assert "4 workers" in read(page.url)
