"""Demand from a Prometheus server: an instant query whose single value is a number of servers, or of units of
them.

A thread asks Prometheus every `every_s`. A reader gets the last answer and never waits.
"""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from flexo.loaning.demand import DemandMissing, DemandSource
from flexo.model.loans import Demand
from flexo.model.nodes import Node
from flexo.model.queue import QueuedJob
from flexo_protos.http_exchange import HttpRequest, exchange

_SHOWN: Final = 200
"""The most characters of an answer that a message repeats."""


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    """A query, and the server that answers it. Raises ValueError for an address that is no Prometheus
    server's."""

    url: str
    """The address as people type it: "http://metrics:9090", with a path if the server is behind one."""
    query: str
    """PromQL with one value."""
    servers_per_unit: float = 1.0
    """Servers for each 1 of the value: 0.125 if the query counts GPUs and a server has 8."""
    timeout_s: float = 10.0
    """Seconds for one read of demand: for connecting, and for every byte of every answer."""
    stale_s: float = 120.0
    """The largest age of a sample at the time of the question, in seconds (Prometheus' own limit is 300)."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        more = parts.query or parts.fragment or "@" in parts.netloc  # messages would repeat a password
        if parts.scheme not in ("http", "https") or not parts.hostname or more:
            raise ValueError(f"'{self.url}' is no address of a Prometheus server such as http://metrics:9090")
        if not (self.servers_per_unit > 0 and math.isfinite(self.servers_per_unit)):
            raise ValueError(f"{self.servers_per_unit} servers for one unit: it takes a number above 0")

    def address(self, promql: str, at: float | None = None) -> str:
        """The whole address of a question: `promql` at present, or as of `at`."""
        asked = {"query": promql, "timeout": f"{self.timeout_s:g}s", "lookback_delta": f"{self.stale_s:g}s"}
        if at is not None:
            asked["time"] = repr(at)
        return f"{self.url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode(asked)}"


class PrometheusDemand(DemandSource):
    """Asks again every `every_s`, in a thread that lasts as long as one question."""

    def __init__(
        self, query: PrometheusQuery, every_s: float = 15.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._query = query
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = -math.inf  # by the monotonic clock
        self._asking: threading.Thread | None = None
        self._last: Demand | None = None
        self._trouble = ""

    def read(self, now: float, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Demand:
        """The last answer, which may be as old as `stale_s` (see DemandSource)."""
        self._ask_in_time()
        with self._lock:
            last, trouble = self._last, self._trouble
        why = trouble or f"Prometheus at {self._query.url} has not answered yet"
        if last is None:
            raise DemandMissing(why)
        age = abs(now - last.at)
        if age > self._query.stale_s:
            raise DemandMissing(f"{why}; the last value is {age:.0f} s old")
        return last

    def _ask_in_time(self) -> None:
        """Start a question if the last one has ended and began long enough ago."""
        now = time.monotonic()
        busy = self._asking is not None and self._asking.is_alive()
        if busy or now - self._asked_at < self._every_s:
            return
        self._asked_at = now
        self._asking = threading.Thread(target=self._ask, name="prometheus", daemon=True)
        self._asking.start()

    def _ask(self) -> None:
        try:
            value, trouble = ask(self._query, self._clock()), ""
        except DemandMissing as error:
            value, trouble = None, str(error)
        except Exception as error:  # a bug is reported, too, instead of the last error
            value, trouble = None, f"the question to Prometheus failed: {type(error).__name__}: {error}"
        with self._lock:
            self._trouble = trouble
            self._last = value or self._last


def ask(query: PrometheusQuery, now: float) -> Demand:
    """Ask once and wait, for `query.timeout_s` at most.

    Raises DemandMissing for any answer that is not one sound, fresh number.
    """
    where = f"Prometheus at {query.url}"
    asking = _Asking(query, time.monotonic() + query.timeout_s)
    answer = asking.answer(query.query)
    servers = answer.value * query.servers_per_unit
    if not (math.isfinite(servers) and servers >= 0):
        raise DemandMissing(f"{where} says that {query.query} is {answer.value}: it takes a number from 0")
    sampled_at = _sampled_at(asking, answer)
    if not abs(now - sampled_at) <= query.stale_s:
        apart = f"{abs(now - sampled_at):.0f} s {'old' if sampled_at < now else 'in the future'}"
        raise DemandMissing(f"{where} answered {query.query} with what is {apart}: is a clock wrong?")
    return Demand(min(now, sampled_at), servers, f"Prometheus: {query.query}")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One value, the time when Prometheus calculated it, and whether it was a scalar, which has no
    samples."""

    at: float
    value: float
    scalar: bool


@dataclass(frozen=True, slots=True)
class _Asking:
    """One read of demand from Prometheus, which may take several questions."""

    query: PrometheusQuery
    until: float
    """The end of the time limit, by the monotonic clock."""

    def answer(self, promql: str, at: float | None = None) -> _Answer:
        """The value of `promql` at present, or as of `at`."""
        body = self._fetched(self.query.address(promql, at))
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            text = f"Prometheus at {self.query.url} answered with what is no JSON: {_shown(body)}"
            raise DemandMissing(text) from None
        return _sample(answer, f"Prometheus at {self.query.url}, asked for {_shown(promql)},")

    def _fetched(self, address: str) -> bytes:
        """The body of the answer, which begins like JSON.

        Errors of PromQL have status 400 and a body that says why. Redirections are not followed. The
        environment's proxy is not used: it is for the way out, and a metrics server is inside.
        """
        where = f"Prometheus at {self.query.url}"
        try:
            request = HttpRequest(address, headers={"Accept": "application/json"})
            answer = exchange(request, self._left_s())
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= self.until:
                text = f"{where} did not answer within {self.query.timeout_s:g} s"
                raise DemandMissing(text) from error
            raise DemandMissing(
                f"{where} cannot be asked: {_shown(error or type(error).__name__)}"
            ) from error
        if not answer.body.lstrip().startswith(b"{"):
            status = f"{answer.status} {_shown(answer.reason)}"
            raise DemandMissing(f"{where} answered {status}, no JSON: {_shown(answer.body)}")
        return answer.body

    def _left_s(self) -> float:
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def _sampled_at(asking: _Asking, answer: _Answer) -> float:
    """The time when the value of `answer` was scraped, as far as Prometheus knows it; for a sum, when it was
    summed.

    Prometheus before version 2.44 ignores `lookback_delta` and takes samples up to 5 minutes old.
    """
    if answer.scalar:
        return answer.at
    return min(answer.at, asking.answer(f"timestamp({asking.query.query}\n)", answer.at).value)


def _sample(answer: object, who: str) -> _Answer:
    """The one value in an answer of the HTTP API, version 1."""
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        raise DemandMissing(f"{who} did not answer as Prometheus' API does: {_shown(answer)}")
    if answer["status"] == "error":
        raise DemandMissing(f"{who} refuses: {_shown(answer.get('error') or answer.get('errorType'))}")
    try:
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "vector":
            result = _only(result, who)["value"]
        elif kind != "scalar":
            raise DemandMissing(f"{who} answers with a {_shown(kind)}: it takes one value at one instant")
        at, value = result
        return _Answer(float(at), float(value), kind == "scalar")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DemandMissing(f"{who} did not answer as Prometheus' API does: {_shown(answer)}") from error


def _only(series: list[dict[str, object]], who: str) -> dict[str, object]:
    if not series:
        raise DemandMissing(f"{who} has no fresh sample (nothing matches, or nothing was scraped of late)")
    if len(series) > 1:
        labels = ", ".join(str(one.get("metric")) for one in series[:2])
        raise DemandMissing(
            f"{who} has {len(series)} series ({_shown(labels)}, ...): sum() makes one of them"
        )
    return series[0]


def _shown(value: object) -> str:
    """The beginning of `value` on one line, in characters that an event store and a terminal can take."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    clean = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(clean.split())[:_SHOWN] or "nothing"
