"""`flexo web` against a flexo-web in this process: the link that it prints, and what it says without one."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from flexod_double import UID, FlexodDouble, SayingWho, client_of, serving
from starlette.types import ASGIApp, Receive, Scope, Send

from flexo_cli import app, web
from flexo_cli.exit_codes import ExitCode
from flexo_web.app import Site


@contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made, f"http://127.0.0.1:{made.getsockname()[1]}"


@contextmanager
def served(application: ASGIApp, listens: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(application, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listens]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(web, "new_authenticator", SayingWho)
    with serving(FlexodDouble()) as address, listening() as (listens, url):
        site = Site(lambda: client_of(address), SayingWho(), url)
        with served(site.app(), listens):
            yield url


def test_it_prints_a_link_that_lets_its_user_in(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["web", "--url", f"{url}/"]) == ExitCode.DONE
    link, said = capsys.readouterr().out.splitlines()
    assert link.startswith(f"{url}/enter/")
    assert "5 min" in said
    monkeypatch.setenv("FLEXO_WEB", url)
    assert app.run(["web", "--json"]) == ExitCode.DONE
    made = json.loads(capsys.readouterr().out)
    assert made["link"].startswith(f"{url}/enter/")
    assert made["link"] != link
    assert (made["user"], made["expires_in_s"]) == (str(UID), 300.0)


def test_a_credential_that_is_not_for_this_flexo_web_is_refused_with_what_to_type(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = url.replace("127.0.0.1", "localhost")  # the same process under another URL than its own
    assert app.run(["web", "--url", other]) == ExitCode.REFUSED
    said = " ".join(capsys.readouterr().err.split())
    assert "was not made for" in said
    assert f"flexo web --url {url}" in said


def test_who_asks_a_loopback_address_of_another_host_is_told_where_to_run_the_command(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OfAnotherHost(SayingWho):
        def credential(self, method: str) -> str:
            return f"{UID} {method.rpartition(' ')[0]} login1"

    monkeypatch.setattr(web, "new_authenticator", OfAnotherHost)
    assert app.run(["web", "--url", url]) == ExitCode.REFUSED
    said = " ".join(capsys.readouterr().err.split())
    assert "on the host of flexo-web" in said
    assert "--url" not in said


def test_where_nobody_listens_it_names_the_address_and_how_to_say_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "new_authenticator", SayingWho)
    with listening() as (_, url):
        pass
    assert app.run(["web", "--url", url]) == ExitCode.UNREACHABLE
    complaint = capsys.readouterr().err
    assert all(part in complaint for part in (url, "--url", "$FLEXO_WEB"))


@pytest.mark.parametrize("answer", [b"<html>hello", b"[]", b"{}"])
def test_what_is_no_flexo_web_is_called_so(
    answer: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def another(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": answer})

    monkeypatch.setattr(web, "new_authenticator", SayingWho)
    with listening() as (listens, url), served(another, listens):
        assert app.run(["web", "--url", url]) == ExitCode.UNREACHABLE
    assert "is not flexo-web" in capsys.readouterr().err


def test_a_url_with_a_path_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["web", "--url", "http://ctl:6837/flexo"]) == ExitCode.REFUSED
    assert "no path" in capsys.readouterr().err


def test_on_a_narrow_terminal_the_link_is_in_one_piece(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = f"https://flexo.hpc.example-university.edu/enter/{'A' * 43}"
    monkeypatch.setattr(web, "_ask", lambda url: web._Link(link, "ada", 300.0))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    app.run(["web", "--url", "https://flexo.hpc.example-university.edu"])
    assert capsys.readouterr().out.splitlines()[0] == link
