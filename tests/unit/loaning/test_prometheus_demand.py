"""What comes back from something at Prometheus' address, and what of it is believed."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from certificates import MadeAuthority

from flexo.loaning.demand import DemandMissing
from flexo.loaning.prometheus import PrometheusDemand, PrometheusQuery, ask

NOW = 1_700_000_000.0
PATIENCE_S = 30.0


class Answers:
    """A web server that says what it is told to."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.headers: dict[str, str] = {}
        self.hold: threading.Event | None = None
        self.hold_second: threading.Event | None = None
        self.asked: list[dict[str, list[str]]] = []
        self.asked_when: list[dict[str, list[str]]] = []
        """When the sample was taken."""
        self.when = b""
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = parse_qs(urlsplit(self.path).query)
                when = asked["query"][0].startswith("timestamp(")
                (answers.asked_when if when else answers.asked).append(asked)
                if answers.hold:
                    answers.hold.wait(PATIENCE_S)
                if when and answers.hold_second:
                    answers.hold_second.wait(PATIENCE_S)
                self.send_response(answers.status)
                for name, value in answers.headers.items():
                    self.send_header(name, value)
                with contextlib.suppress(ConnectionError):  # nobody waits any more
                    self.end_headers()
                    self.wfile.write(answers.when if when else answers.body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def say(self, data: object, status: int = 200, sampled_at: float = NOW) -> None:
        self.status, self.body = status, json.dumps(data).encode()
        self.when = json.dumps(vector(repr(sampled_at))).encode()


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    if made.hold:
        made.hold.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def vector(*values: str, at: float = NOW) -> dict[str, object]:
    result = [{"metric": {"pool": str(number)}, "value": [at, value]} for number, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def query(answers: Answers, **changes) -> PrometheusQuery:
    return PrometheusQuery(answers.url, "sum(busy)", timeout_s=5.0, stale_s=60.0, **changes)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_value_is_servers(answers):
    answers.say(vector("12.5"))
    demand = ask(query(answers), NOW + 1)
    assert (demand.at, demand.servers) == (NOW, 12.5)
    assert "sum(busy)" in demand.source
    assert answers.asked == [{"query": ["sum(busy)"], "timeout": ["5s"], "lookback_delta": ["60s"]}]
    (when,) = answers.asked_when
    assert (when["query"], when["time"]) == (["timestamp(sum(busy)\n)"], [repr(NOW)])


def test_a_scalar_will_do_as_well(answers):
    answers.say({"status": "success", "data": {"resultType": "scalar", "result": [NOW, "3"]}})
    assert ask(query(answers), NOW).servers == 3
    assert not answers.asked_when


def test_a_value_is_as_old_as_its_sample(answers):
    answers.say(vector("4"), sampled_at=NOW - 50)
    assert ask(query(answers), NOW).at == NOW - 50
    answers.say(vector("4"), sampled_at=NOW - 61)
    with pytest.raises(DemandMissing, match="61 s old"):
        ask(query(answers), NOW)


def test_units_other_than_servers_are_converted(answers):
    answers.say(vector("20"))
    assert ask(query(answers, servers_per_unit=0.25), NOW).servers == 5


ERROR = {"status": "error", "errorType": "bad_data", "error": 'parse error: unexpected "}"'}
MATRIX = {"status": "success", "data": {"resultType": "matrix", "result": []}}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (vector(), "no fresh sample"),
        (vector("1", "2"), "2 series"),
        (vector("NaN"), "nan"),
        (vector("+Inf"), "inf"),
        (vector("-1"), "-1"),
        (vector("many"), "did not answer as Prometheus"),
        (vector("1", at=NOW - 61), "61 s old"),
        (vector("1", at=NOW + 61), "61 s in the future"),
        (vector("1", at=float("nan")), "clock"),
        (ERROR, "parse error"),
        (MATRIX, "matrix"),
        ({"status": "success", "data": None}, "did not answer as Prometheus"),
        (
            {"status": "success", "data": {"resultType": "vector", "result": [7]}},
            "did not answer as Prometheus",
        ),
        ({"hello": 1}, "did not answer as Prometheus"),
        (
            {"status": "success", "data": {"resultType": "scalar", "result": [10**400, "1"]}},
            "did not answer as Prometheus",
        ),
    ],
)
def test_an_answer_that_is_not_one_sound_fresh_number_is_missing_demand(answers, said, words):
    answers.say(said, 400 if said is ERROR else 200, sampled_at=NOW + 1000)
    with pytest.raises(DemandMissing, match=words) as told:
        ask(query(answers), NOW)
    assert answers.url in str(told.value)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (502, b"<html>bad gateway</html>", "502 Bad Gateway"),
        (200, b"<html>welcome</html>", "no JSON: <html>welcome"),
        (200, b"", "no JSON: nothing"),
        (200, b'{"status": "succ', "no JSON"),
        (200, b'{"a":' + b"[" * 100_000, "no JSON"),
        (302, b"", "302"),
    ],
)
def test_what_is_no_answer_of_prometheus_is_missing_demand(answers, status, body, words):
    answers.status, answers.body = status, body
    answers.headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
    with pytest.raises(DemandMissing, match=words):
        ask(query(answers), NOW)


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "half \ud800 of a character", "two\nlines", "\u202etxet"])
def test_what_a_event_store_or_a_terminal_cannot_take_is_not_repeated(answers, text):
    answers.say({"status": "error", "error": text}, 400)
    with pytest.raises(DemandMissing, match="refuses") as told:
        ask(query(answers), NOW)
    assert str(told.value).isprintable()


def test_nobody_there_is_missing_demand():
    with pytest.raises(DemandMissing, match="cannot be asked"):
        ask(PrometheusQuery("http://127.0.0.1:1", "up"), NOW)


@contextlib.contextmanager
def endless(beginning: bytes) -> Iterator[str]:
    """A server that sends a byte now and then, and never comes to an end; its address."""
    over = threading.Event()

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(beginning)
                while not over.wait(0.02):
                    self.request.sendall(b" ")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drip) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        over.set()
        server.shutdown()
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "beginning", [b"", HEAD + b"X: ", HEAD + b"\r\n{", HEAD + b"Content-Length: 9999\r\n\r\n"]
)
def test_one_who_answers_a_byte_at_a_time_has_no_longer_than_others(beginning):
    with endless(beginning) as url, pytest.raises(DemandMissing, match=r"did not answer within 0\.5 s"):
        ask(PrometheusQuery(url, "up", timeout_s=0.5), NOW)


def test_one_deadline_is_for_all_questions(answers):
    """The first has its answer; for the second there is what the first has left."""
    answers.say(vector("1"))
    answers.hold_second = threading.Event()
    with pytest.raises(DemandMissing, match="did not answer within 1 s"):
        ask(replace(query(answers), timeout_s=1.0), NOW)
    answers.hold_second.set()
    assert len(answers.asked) == len(answers.asked_when) == 1


@pytest.mark.processes
def test_an_encrypted_server_is_asked_if_its_certificate_is_trusted(answers, tmp_path, monkeypatch):
    authority = MadeAuthority(tmp_path)
    pair = authority.sign("metrics")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    answers.server.socket = context.wrap_socket(answers.server.socket, server_side=True)
    answers.say(vector("1"))
    secret = replace(query(answers), url=answers.url.replace("http:", "https:"))
    with pytest.raises(DemandMissing, match="certificate verify failed"):
        ask(secret, NOW)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    assert ask(secret, NOW).servers == 1


def test_the_environments_proxy_is_not_asked(answers, monkeypatch):
    answers.say(vector("1"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ask(query(answers), NOW).servers == 1


@pytest.mark.parametrize(
    "url",
    ["metrics:9090", "ftp://m", "file:///etc/passwd", "http://", "http://m?q=1", "http://me:word@m", ""],
)
def test_what_is_no_address_of_a_server_is_refused_at_once(url):
    with pytest.raises(ValueError, match="no address"):
        PrometheusQuery(url, "up")


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan"), float("inf")])
def test_a_conversion_that_is_none_is_refused_at_once(share):
    with pytest.raises(ValueError, match="above 0"):
        PrometheusQuery("http://m", "up", servers_per_unit=share)


def read_until_known(source: PrometheusDemand, now: float) -> float:
    found: list[float] = []

    def known() -> bool:
        try:
            found.append(source.read(now, (), ()).servers)
        except DemandMissing:
            return False
        return True

    until(known)
    return found[0]


def test_reading_never_waits_and_says_what_it_waits_for(answers):
    answers.hold = threading.Event()
    answers.say(vector("4"))
    source = PrometheusDemand(query(answers), every_s=0.0, clock=lambda: NOW)
    for _ in range(3):
        with pytest.raises(DemandMissing, match="not answered yet"):
            source.read(NOW, (), ())
    until(lambda: len(answers.asked) == 1)
    answers.hold.set()
    assert read_until_known(source, NOW) == 4


def test_the_last_value_stands_until_it_is_stale_and_then_says_why_there_is_none(answers):
    answers.say(vector("4"))
    source = PrometheusDemand(query(answers), every_s=0.0, clock=lambda: NOW)
    assert read_until_known(source, NOW) == 4
    asked = len(answers.asked)
    answers.status, answers.body = 503, b"starting"
    until(lambda: source.read(NOW + 59, (), ()).servers == 4 and len(answers.asked) > asked + 1)

    def says(words: str) -> bool:
        with pytest.raises(DemandMissing) as told:
            source.read(NOW + 61, (), ())
        assert "61 s old" in str(told.value)
        return words in str(told.value)

    until(lambda: says("503"))


def test_a_clock_that_is_set_back_makes_the_last_value_stale(answers):
    answers.say(vector("4"))
    source = PrometheusDemand(query(answers), every_s=0.0, clock=lambda: NOW)
    assert read_until_known(source, NOW) == 4
    with pytest.raises(DemandMissing):
        source.read(NOW - 3600, (), ())


def test_it_asks_no_more_often_than_it_is_told_to(answers):
    answers.say(vector("4"))
    source = PrometheusDemand(query(answers), every_s=3600.0, clock=lambda: NOW)
    assert read_until_known(source, NOW) == 4
    for _ in range(20):
        source.read(NOW, (), ())
    assert len(answers.asked) == 1
