"""Who may see flexo-web's pages: a credential for this flexo-web, a link that works once, a session."""

from __future__ import annotations

import pytest
from flexod_double import FlexodDouble, SayingWho, client_of, serving
from signed_in import URL
from starlette.testclient import TestClient

from flexo_protos import web_login
from flexo_web.app import Site
from flexo_web.security_headers import CONTENT_SECURITY_POLICY

SHOWN = ("/", "/mine", "/jobs/17", "/loans", "/sharing", "/value", "/events/1")
PAGES = (*SHOWN, *(f"/updates{path}" for path in SHOWN), "/value.csv", "/what-if", "/what-if/a.html")


def link(site: TestClient, uid: int = 0) -> str:
    answer = site.post("/links", headers={"flexo-munge": f"{uid} {web_login.purpose(URL)}"})
    assert answer.status_code == 200
    return str(answer.json()["link"])


@pytest.mark.parametrize("path", PAGES)
def test_without_a_session_a_page_says_how_to_sign_in_and_nothing_of_the_cluster(
    site: TestClient, path: str
) -> None:
    answer = site.get(path)
    assert answer.status_code == 401
    assert "flexo web" in answer.text
    assert "ada" not in answer.text


def test_a_link_shows_whom_it_lets_in_and_works_once(site: TestClient) -> None:
    made = link(site)
    for _ in range(2):  # a program that previews links does not use it up
        assert "Enter as root" in site.get(made).text
    entered = site.post(made, headers={"origin": URL})
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "max-age=43200", "path=/"))
    assert site.get("/").status_code == 200
    site.cookies.clear()
    assert site.post(made, headers={"origin": URL}).status_code == 401
    assert site.get(made).status_code == 401
    assert site.get("/").status_code == 401


@pytest.mark.parametrize(
    "said",
    [
        "",
        "0",
        "0 /flexo.v1.AdminService/GetStatus",
        "0 /links of http://127.0.0.1:9999",
        "0 /links of http://127.0.0.1:6837 on another-host",
    ],
)
def test_a_credential_for_something_else_gives_no_link(site: TestClient, said: str) -> None:
    answer = site.post("/links", headers={"flexo-munge": said})
    assert answer.status_code == 401
    assert "link" not in answer.json()


def test_an_account_without_a_name_is_its_number(site: TestClient) -> None:
    assert "Enter as 3999999" in site.get(link(site, 3_999_999)).text


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "http://evil.example",
        "http://127.0.0.1:9999",
        "https://127.0.0.1:6837",
        "http://[",
        "://:0",
    ],
)
def test_a_form_of_another_site_neither_enters_nor_uses_the_link_up(
    site: TestClient, origin: str | None
) -> None:
    made = link(site)
    headers = {} if origin is None else {"origin": origin}
    assert site.post(made, headers=headers).status_code == 403
    assert site.post("/leave", headers=headers).status_code == 403
    assert site.post(made, headers={"origin": URL}).status_code == 303


def test_a_form_of_another_port_is_foreign_whatever_host_the_request_names(site: TestClient) -> None:
    named = {"origin": "http://localhost:7", "host": "localhost:7"}
    assert site.post("/leave", headers=named).status_code == 403


@pytest.mark.parametrize(
    ("url", "origin", "host", "status"),
    [
        (URL, "http://localhost:6837", "localhost:6837", 200),
        ("https://web.example", "https://web.example", "web.example", 200),
        ("https://web.example", "http://web.example", "web.example", 403),
        ("https://web.example", "https://web.example:8443", "web.example:8443", 403),
        ("https://web.example:8443", "https://web.example:8443", "web.example", 200),  # nginx's $host
        ("https://Web.example:443", "https://web.example", "web.example", 200),
        ("http://web.example:80", "http://web.example", "web.example", 200),
    ],
)
def test_a_form_is_the_site_s_own_if_scheme_host_and_port_are_those_of_its_url(
    url: str, origin: str, host: str, status: int
) -> None:
    with serving(FlexodDouble()) as address:
        application = Site(lambda: client_of(address), SayingWho(), url).app()
        with TestClient(application, base_url=url) as visitor:
            answer = visitor.post("/leave", headers={"origin": origin, "host": host})
    assert answer.status_code == status


def test_who_signs_out_is_out_and_so_is_a_copy_of_the_cookie(site: TestClient) -> None:
    site.post(link(site), headers={"origin": URL})
    kept = dict(site.cookies)
    assert site.post("/leave", headers={"origin": URL}).status_code == 200
    site.cookies.update(kept)
    assert site.get("/").status_code == 401


def test_a_site_under_a_name_of_its_own_is_not_answered(site: TestClient) -> None:
    assert site.get("/", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/links", "/static/web.js", "/static/web.css", "/nowhere"])
def test_every_answer_forbids_inline_scripts_frames_and_what_is_from_elsewhere(
    site: TestClient, path: str
) -> None:
    headers = site.get(path).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_nothing_is_done_on_the_cluster_by_any_request(site: TestClient, flexod: FlexodDouble) -> None:
    site.post(link(site), headers={"origin": URL})
    for path in ("/", "/mine", "/jobs/17", "/jobs?id=17"):
        assert site.post(path, headers={"origin": URL}, data={"workers": "4"}).status_code in (403, 405)
        site.get(path)
    reading = {"GetStatus", "ListJobs", "ListNodes", "ListLoans", "ExplainJob", "ListEvents"}
    assert set(flexod.asked) <= reading


@pytest.mark.parametrize(
    "url", ["ftp://ctl", "ctl:6837", "http://", "http://ctl:x", "http://ctl/a", "http://a@b"]
)
def test_a_url_that_is_none_of_flexo_web_is_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(ValueError, match=r"http|[Pp]ort"):
        web_login.checked(url)


def test_a_url_is_taken_without_the_slash_at_its_end() -> None:
    assert web_login.checked("https://flexo.example.org/") == "https://flexo.example.org"


def test_credentials_of_two_hosts_own_loopback_addresses_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    here = web_login.purpose(URL)
    monkeypatch.setattr(web_login.socket, "gethostname", lambda: "another")
    assert web_login.purpose(URL) != here
