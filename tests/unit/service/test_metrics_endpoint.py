"""The address at which metrics can be read, and what a reader can do to it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from flexo.config import ConfigError, parse
from flexo.service import metrics_endpoint
from flexo.service.metrics_endpoint import metrics_served
from flexo.service.server import AddressUnusable


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Gauge("flexo_answer", "What it is.", registry=made).set(42)
    return made


@contextlib.contextmanager
def served(registry: CollectorRegistry, host: str = "127.0.0.1") -> Iterator[str]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host.strip("[]"), 0))
        port = probe.getsockname()[1]
    with metrics_served(f"{host}:{port}", registry):
        yield f"{host}:{port}"


def read(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read().decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_metrics_can_be_read_with_their_meaning_while_flexod_serves_and_not_after(registry, host):
    with served(registry, host) as address:
        assert read(address) == (
            "# HELP flexo_answer What it is.\n# TYPE flexo_answer gauge\nflexo_answer 42.0\n"
        )
    with pytest.raises(OSError, match="refused"):
        read(address)


def test_nothing_listens_where_no_address_is_set(registry):
    with metrics_served("", registry):
        pass


def test_an_address_in_use_is_refused_and_named_with_its_key(registry):
    with served(registry) as address, pytest.raises(AddressUnusable) as caught:  # noqa: SIM117
        with metrics_served(address, registry):
            pass
    assert (
        str(caught.value) == f"cannot serve metrics on {address} ([metrics] listen): Address already in use"
    )


def test_a_reader_that_says_nothing_is_hung_up_on_and_others_are_answered(registry, monkeypatch):
    monkeypatch.setattr(metrics_endpoint._Handler, "timeout", 0.2)
    with served(registry) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as silent:
            silent.sendall(b"GET /metr")
            assert "flexo_answer" in read(address)
            assert silent.recv(1) == b""


@pytest.mark.thorough
def test_a_reader_that_asks_byte_by_byte_holds_nobody_up_and_does_not_stay(registry, monkeypatch):
    monkeypatch.setattr(metrics_endpoint, "WITHIN_S", 2.0)
    with served(registry) as address:
        host, _, port = address.rpartition(":")
        began = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.settimeout(0.3)
            for byte in b"GET /metrics HTTP/1.1\r\n" + b"x" * 200:
                with contextlib.suppress(OSError):
                    slow.sendall(bytes([byte]))
                try:
                    if slow.recv(1) == b"":
                        break
                except TimeoutError:
                    assert "flexo_answer" in read(address)
                except OSError:
                    break
        assert time.monotonic() - began < 20


def test_many_readers_that_say_nothing_keep_nobody_from_reading(registry):
    with served(registry) as address, contextlib.ExitStack() as stack:
        host, _, port = address.rpartition(":")
        for _ in range(48):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30)).sendall(b"G")
        began = time.monotonic()
        assert "flexo_answer" in read(address)
        assert time.monotonic() - began < 4
        deadline = time.monotonic() + 20
        while (serving := _serving()) > 16 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert serving <= 16


def _serving() -> int:
    return sum("process_request" in each.name for each in threading.enumerate())


@pytest.mark.parametrize("nonsense", [b"\x00\xff\r\n\r\n", b"GET /metrics\r\n", b"DELETE / HTTP/1.1\r\n\r\n"])
def test_nonsense_is_answered_or_hung_up_on_and_costs_nothing(registry, nonsense):
    with served(registry) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as odd:
            odd.sendall(nonsense)
            odd.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while odd.recv(4096):
                    pass
        assert "flexo_answer" in read(address)


@pytest.mark.parametrize("value", ['"9836"', '"host:0"', '"host:70000"', "9836", '"http://host:9836"'])
def test_an_address_that_is_none_is_refused_with_what_is_allowed(value):
    with pytest.raises(ConfigError, match=r"\[metrics\] listen = .* it takes \"host:port\""):
        parse(f"[metrics]\nlisten = {value}\n", "flexo.toml")
