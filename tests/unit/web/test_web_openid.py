"""Sign-in by a provider of OpenID Connect: a real one of a few lines, at its own address over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
import pytest

jwt = pytest.importorskip("jwt")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")

from flexod_double import FlexodDouble, SayingWho, client_of, serving  # noqa: E402
from signed_in import URL  # noqa: E402
from starlette.responses import PlainTextResponse, Response  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from flexo_web import process  # noqa: E402
from flexo_web.app import Site  # noqa: E402
from flexo_web.openid import FLOW_S, NotSignedIn, OpenId, Provider  # noqa: E402
from flexo_web.openid_entrance import OpenIdEntrance  # noqa: E402
from flexo_web.refusals import RefusalLog  # noqa: E402

CLIENT, SECRET, USER = "flexo-web", "s3cret:with/marks", "games"
KEY = rsa.generate_private_key(65537, 2048)
OTHER_KEY = rsa.generate_private_key(65537, 2048)


class Issuer(ThreadingHTTPServer):
    """Lets USER in without a question. Tests change what its tokens say, and with what it signs them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.claims: dict[str, object] = {}
        """Of tokens, instead of the right ones; None leaves a claim out."""
        self.key: object = KEY
        self.alg, self.kid = "RS256", "first"
        self.published = {"first": KEY}
        self.issuer = self.url
        self.codes: dict[str, dict[str, str]] = {}

    def token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": CLIENT, "sub": "42", "iat": now, "exp": now + 60, "nonce": asked["nonce"],
            "preferred_username": USER, **self.claims,
        }  # fmt: skip
        said = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(said, self.key, algorithm=self.alg, headers={"kid": self.kid})


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        path, asked = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
        server = self.server
        if path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self._say({"issuer": server.issuer, **{key: f"{server.url}/{end}" for key, end in names.items()}})
        elif path == "/keys":
            to_jwk = jwt.algorithms.RSAAlgorithm.to_jwk
            found = {kid: json.loads(to_jwk(key.public_key())) for kid, key in server.published.items()}
            self._say({"keys": [{**key, "kid": kid, "use": "sig"} for kid, key in found.items()]})
        elif path == "/authorize":
            assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
            code = secrets.token_urlsafe(8)
            server.codes[code] = asked
            self.send_response(302)
            answer = urlencode({"code": code, "state": asked["state"]})
            self.send_header("Location", f"{asked['redirect_uri']}?{answer}")
            self.end_headers()

    def do_POST(self) -> None:
        said = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        asked = self.server.codes.pop(said["code"][0], None)
        pair = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        digest = hashlib.sha256(said["code_verifier"][0].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        good = (
            asked is not None
            and pair == f"{CLIENT}:s3cret%3Awith%2Fmarks"
            and (asked["code_challenge"], asked["code_challenge_method"]) == (challenge, "S256")
            and asked["redirect_uri"] == said["redirect_uri"][0]
        )
        if not good:
            self._say({"error": "invalid_grant"}, 400)
            return
        self._say({"id_token": self.server.token(asked or {}), "access_token": "x", "token_type": "Bearer"})

    def _say(self, said: object, status: int = 200) -> None:
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def refusals() -> list[str]:
    return []


@pytest.fixture
def visitor(issuer: Issuer, refusals: list[str]) -> Iterator[TestClient]:
    """A browser that has not signed in."""
    openid = OpenId(Provider(issuer.url, CLIENT, SECRET), URL)
    with serving(FlexodDouble()) as address:
        log = RefusalLog(refusals.append)
        site = Site(lambda: client_of(address), SayingWho(), URL, refusals=log, openid=openid)
        with TestClient(site.app(), base_url=URL, follow_redirects=False) as made:
            yield made


def to_provider_and_back(visitor: TestClient) -> str:
    """The path, with code and state, to which the provider sends the visitor back."""
    begun = visitor.get(visitor.get("/").headers["location"])
    assert begun.status_code == 303
    back = httpx2.get(begun.headers["location"], trust_env=False).headers["location"]
    assert back.startswith(f"{URL}/openid/callback?")
    return back.removeprefix(URL)


def test_a_visitor_enters_as_the_account_that_the_provider_names(
    visitor: TestClient, refusals: list[str]
) -> None:
    back = visitor.get(to_provider_and_back(visitor))
    assert back.status_code == 303
    link = back.headers["location"]
    assert f"Enter as {USER}" in visitor.get(link).text
    assert visitor.post(link, headers={"origin": URL}).status_code == 303
    assert USER in visitor.get("/").text
    assert refusals == []


def test_the_cookie_of_a_flow_is_hidden_from_scripts_and_ends_with_the_flow(visitor: TestClient) -> None:
    begun = visitor.get("/openid")
    cookie = begun.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=lax", "max-age=600"))
    back = httpx2.get(begun.headers["location"], trust_env=False).headers["location"].removeprefix(URL)
    assert visitor.get(back).status_code == 303
    assert not visitor.cookies
    assert visitor.get(back).status_code == 403


def test_an_answer_in_a_browser_in_which_no_sign_in_began_is_refused(
    visitor: TestClient, refusals: list[str]
) -> None:
    back = to_provider_and_back(visitor)
    visitor.cookies.clear()
    assert visitor.get(back).status_code == 403
    visitor.get("/openid")  # a flow of its own
    assert visitor.get(back).status_code == 403
    assert len(refusals) == 2


def test_a_code_without_the_verifier_of_its_flow_is_of_no_use(visitor: TestClient, issuer: Issuer) -> None:
    back = to_provider_and_back(visitor)
    stolen = parse_qs(urlsplit(back).query)["code"][0]
    state = parse_qs(urlsplit(to_provider_and_back(visitor)).query)["state"][0]
    answer = visitor.get(f"/openid/callback?{urlencode({'code': stolen, 'state': state})}")
    assert answer.status_code == 403
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://elsewhere.example"}, {"aud": "another"}, {"aud": None}, {"nonce": "another"},
        {"nonce": None}, {"nonce": 5}, {"exp": 1000}, {"exp": None}, {"iat": 4_000_000_000}, {"sub": None},
        {"aud": [CLIENT, "another"]}, {"azp": "another"}, {"preferred_username": None},
        {"preferred_username": "root"}, {"preferred_username": "nobody-of-this-name"},
        {"preferred_username": "games@example.org"}, {"preferred_username": ["games"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_token_that_says_something_else_lets_nobody_in(
    visitor: TestClient, issuer: Issuer, refusals: list[str], claims: dict[str, object]
) -> None:
    issuer.claims = claims
    assert visitor.get(to_provider_and_back(visitor)).status_code == 403
    assert len(refusals) == 1


def test_a_token_for_several_clients_is_good_if_it_says_that_it_is_for_this_one(
    visitor: TestClient, issuer: Issuer
) -> None:
    issuer.claims = {"aud": [CLIENT, "another"], "azp": CLIENT}
    assert visitor.get(to_provider_and_back(visitor)).status_code == 303


@pytest.mark.parametrize("alg", ["none", "HS256"])
def test_a_token_that_others_could_sign_is_refused(visitor: TestClient, issuer: Issuer, alg: str) -> None:
    issuer.alg, issuer.key = alg, "" if alg == "none" else SECRET * 3
    assert visitor.get(to_provider_and_back(visitor)).status_code == 403


def test_a_token_of_another_key_is_refused_and_a_new_key_of_the_provider_is_found(
    visitor: TestClient, issuer: Issuer
) -> None:
    issuer.key = OTHER_KEY
    assert visitor.get(to_provider_and_back(visitor)).status_code == 403
    issuer.kid, issuer.published = "second", {"second": OTHER_KEY}
    openid = OpenId(Provider(issuer.url, CLIENT, SECRET), URL)
    flow = openid.begin()
    back = parse_qs(urlsplit(httpx2.get(flow.address, trust_env=False).headers["location"]).query)
    assert openid.finish(flow.cookie, back["state"][0], back["code"][0]) == USER


def test_a_flow_ends_in_time(issuer: Issuer) -> None:
    now = [1_700_000_000.0]
    openid = OpenId(Provider(issuer.url, CLIENT, SECRET), URL, lambda: now[0])
    flow = openid.begin()
    state = parse_qs(urlsplit(flow.address).query)["state"][0]
    now[0] += FLOW_S + 1
    with pytest.raises(NotSignedIn, match="begin again"):
        openid.finish(flow.cookie, state, "code")


def test_a_provider_that_is_away_or_another_one_lets_nobody_in(visitor: TestClient, issuer: Issuer) -> None:
    issuer.issuer = "https://elsewhere.example"
    answer = visitor.get("/openid")
    assert (answer.status_code, "another issuer" in answer.text) == (403, True)
    issuer.shutdown()
    issuer.server_close()
    assert visitor.get("/openid").status_code == 403


def test_an_error_of_the_provider_is_told_as_text(visitor: TestClient) -> None:
    answer = visitor.get("/openid/callback?error=<script>alert(1)</script>&state=x")
    assert (answer.status_code, "<script>alert" in answer.text) == (403, False)


def test_streams_of_changes_are_not_sent_to_the_provider(visitor: TestClient) -> None:
    assert visitor.get("/updates/").status_code == 401


@pytest.mark.parametrize("issuer_url", ["http://idp.example.org", "ftp://idp.example.org", "idp"])
def test_a_provider_without_tls_is_refused(issuer_url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        Provider(issuer_url, CLIENT)


def test_a_password_that_others_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process.os, "geteuid", lambda: 65_534)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o640)
    options = ["--openid-issuer", "https://idp.example.org", "--openid-client", CLIENT]
    with pytest.raises(SystemExit) as ended:
        process.main([*options, "--openid-secret-file", str(file)])
    assert ended.value.code == 2
    assert "chmod 600" in capsys.readouterr().err


class Hanging:
    """A provider that answers nobody until it is let go."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def begin(self) -> None:
        self.answers.wait(10)
        raise NotSignedIn("it has hung")


def test_a_provider_that_hangs_keeps_no_more_visitors_waiting_than_are_bearable() -> None:
    hanging = Hanging()

    def page(why: str, status: int) -> Response:
        return PlainTextResponse(why, status)

    entrance = OpenIdEntrance(hanging, lambda _: "", page, RefusalLog(lambda _: None), secure=False)  # type: ignore[arg-type]
    begin = entrance.routes()[0].endpoint

    async def crowd() -> list[str]:
        visits = [asyncio.create_task(begin(None)) for _ in range(70)]
        turned_away, _ = await asyncio.wait(visits, timeout=0.5)
        hanging.answers.set()
        await asyncio.gather(*visits)
        return [visit.result().body.decode() for visit in turned_away]

    told = asyncio.run(crowd())
    assert len(told) == 70 - 64
    assert all("too many sign in" in each for each in told)
