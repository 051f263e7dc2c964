"""A proxy that signs users in: its account alone speaks at its socket, and it names one user by one header.

Everything is real here: the socket, the kernel's word on who connects, and uvicorn. Only flexod is a double.
"""

from __future__ import annotations

import http.client
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from flexod_double import FlexodDouble, job
from listening_web import HEADER, OWN, Served, web_server
from signed_in import URL, until

from flexo_protos.web_login import purpose
from flexo_web import accounts, process, trusted_header
from flexo_web.proxy_socket import Proxy, listening, overflow_uid
from flexo_web.refusals import RefusalLog

USER = "games"
"""An account that every Debian has, without rights."""
ANOTHER = OWN + 1


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Served]:
    with web_server(tmp_path) as served:
        yield served


def test_the_user_whom_the_proxy_names_sees_pages_without_a_link(web: Served) -> None:
    status, text = web.by_proxy(USER)
    assert (status, USER in text) == (200, True)
    assert web.refusals == []


def test_a_proxy_of_another_account_is_hung_up_on_and_logged(tmp_path: Path) -> None:
    with web_server(tmp_path, ANOTHER) as web:
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            web.by_proxy(USER)
        assert len(web.refusals) == 1
        assert f"uid {OWN} connected" in web.refusals[0]
        assert f"only uid {ANOTHER} may" in web.refusals[0]


def test_a_forged_header_over_tcp_is_refused_and_logged(web: Served) -> None:
    status, text = web.by_tcp(**{HEADER: USER})
    assert status == 403
    assert "ada" not in text
    assert len(web.refusals) == 1
    assert "TCP" in web.refusals[0]
    assert HEADER in web.refusals[0]


@pytest.mark.parametrize("header", ["x-remote-user", "X-REMOTE-USER"])
def test_the_header_is_the_same_in_any_case(web: Served, header: str) -> None:
    assert web.by_tcp(**{header: USER})[0] == 403
    assert web.by_proxy(USER, header=header)[0] == 200


@pytest.mark.parametrize("header", ["X_Remote_User", "X-Remote-User-", "Remote-User"])
def test_a_header_of_another_name_names_nobody(web: Served, header: str) -> None:
    assert web.by_proxy(USER, header=header)[0] == 403
    assert web.by_tcp(**{header: USER})[0] == 401


@pytest.mark.parametrize(
    "names",
    [(), (USER, USER), (USER, "news")],
    ids=["none", "the same twice", "two"],
)
def test_a_request_of_the_proxy_names_exactly_one_user(web: Served, names: tuple[str, ...]) -> None:
    status, text = web.by_proxy(*names)
    assert (status, "ada" in text) == (403, False)
    assert len(web.refusals) == 1
    assert f"{len(names)} headers" in web.refusals[0]


@pytest.mark.parametrize(
    "name",
    ["", "5", "games,news", "games@EXAMPLE.ORG", "games news", "../games", "games\xe9", "a" * 300],
)
def test_a_malformed_name_is_refused_and_logged(web: Served, name: str) -> None:
    assert web.by_proxy(name)[0] == 403
    assert len(web.refusals) == 1
    assert len(web.refusals[0]) < 200
    assert web.refusals[0].isascii()


def test_a_user_whom_the_host_does_not_know_is_refused_and_logged(web: Served) -> None:
    assert web.by_proxy("nobody-of-this-name")[0] == 403
    assert "no account 'nobody-of-this-name'" in web.refusals[0]


def test_root_is_refused_under_any_name_of_uid_0(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert web.by_proxy("root")[0] == 403
    toor = pwd.struct_passwd(("toor", "x", 0, 0, "", "/", "/bin/sh"))
    monkeypatch.setattr(accounts.pwd, "getpwnam", lambda name: toor)
    assert web.by_proxy("toor")[0] == 403
    assert all("is root" in line for line in web.refusals)
    assert len(web.refusals) == 2


def test_a_session_of_somebody_else_counts_for_nothing_at_the_proxys_socket(web: Served) -> None:
    with httpx2.Client(base_url=f"http://127.0.0.1:{web.port}", headers={"host": "127.0.0.1:6837"}) as root:
        made = root.post("/links", headers={"flexo-munge": f"0 {purpose(URL)}"}).json()["link"]
        entered = root.post(made.removeprefix(URL), headers={"origin": URL})
    cookie = entered.headers["set-cookie"].partition(";")[0]
    assert "root" in web.by_tcp(cookie=cookie)[1]
    status, text = web.by_proxy(USER, cookie=cookie)
    assert (status, USER in text, "root" in text) == (200, True, False)
    assert web.by_proxy(cookie=cookie)[0] == 403


def test_without_the_options_nobody_is_believed_and_the_header_is_like_any_other(tmp_path: Path) -> None:
    with web_server(tmp_path, None) as web:
        assert web.by_tcp(**{HEADER: USER})[0] == 401
        assert not web.path.exists()


def test_an_open_page_ends_in_time_so_that_the_proxy_names_the_user_again() -> None:
    now = [0.0]
    named = trusted_header._Named(trusted_header.Viewer(5, USER), trusted_header.NAMED_FOR_S)
    scope = {"state": {trusted_header._NAMED: named}}
    assert trusted_header.named_by_proxy(scope, lambda: now[0]) == named.viewer
    now[0] = trusted_header.NAMED_FOR_S
    assert trusted_header.named_by_proxy(scope, lambda: now[0]) is None


def test_a_socket_that_nobody_serves_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "proxy.socket"
    listening(path).close()
    with listening(path) as served:
        served.listen()
        with pytest.raises(OSError, match="in use"):
            listening(path)


def test_a_file_in_the_place_of_the_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "proxy.socket"
    path.write_text("something")
    with pytest.raises(OSError, match="in use"):
        listening(path)
    assert path.read_text() == "something"


def test_the_account_of_all_unmapped_accounts_is_no_proxy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="account of its own"):
        Proxy(tmp_path / "proxy.socket", overflow_uid(), HEADER)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--proxy-socket", "/run/flexo-web/proxy"], "--proxy-account"),
        (["--proxy-account", USER], "--proxy-socket"),
        (["--proxy-socket", "proxy", "--proxy-account", USER], "absolute"),
        (["--proxy-socket", "/run/proxy", "--proxy-account", "nobody-of-this-name"], "no such account"),
        (["--proxy-socket", "/run/proxy", "--proxy-account", USER, "--proxy-header", "a_b"], "hyphens"),
    ],
)
def test_options_of_a_proxy_that_cannot_be_end_it_with_2_and_what_is_allowed(
    options: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    with pytest.raises(SystemExit) as ended:
        process.main(options)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_refusals_without_end_write_a_line_a_second_and_count_the_others() -> None:
    lines: list[str] = []
    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    log = RefusalLog(lines.append, clock)
    for _ in range(1000):
        log.note("somebody")
    assert len(lines) == 20
    now[0] = 1.0
    log.note("somebody")
    log.note("somebody")
    assert len(lines) == 21
    assert "980 more" in lines[-1]


def test_a_user_whom_the_proxy_names_scales_own_jobs_with_the_form_that_this_user_was_shown(
    tmp_path: Path,
) -> None:
    flexod = FlexodDouble()
    flexod.status.web_steering, flexod.jobs = True, [job(17, USER)]
    with web_server(tmp_path, flexod=flexod) as web:
        until(lambda: web.token(USER))
        assert web.token("news") == "", "another's job has no form"
        for name, token in (("news", web.token(USER)), (USER, "")):
            assert web.form_by_proxy(name, token=token, workers="4")[0] == 403
        assert web.form_by_proxy("root", token=web.token(USER), workers="4")[0] == 403
        assert flexod.scaled == []
        assert web.form_by_proxy(USER, token=web.token(USER), workers="4")[0] == 303
    assert flexod.scaled == [(17, 4, pwd.getpwnam(USER).pw_uid)]
