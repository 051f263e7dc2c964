"""Demand from a real Prometheus that scrapes a small exporter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from prometheus_process import Exporter, Prometheus

from flexo.loaning.demand import DemandMissing
from flexo.loaning.prometheus import PrometheusDemand, PrometheusQuery, ask

WITHIN_S = 90.0
STALE_S = 30.0
T = TypeVar("T")


def once(call: Callable[[], T], wanted: Callable[[T], bool] = lambda _: True) -> T:
    """The first answer of `call` that is `wanted`."""
    deadline, last = time.monotonic() + WITHIN_S, "nothing"
    while time.monotonic() < deadline:
        try:
            answer = call()
        except DemandMissing as error:
            last = str(error)
        else:
            if wanted(answer):
                return answer
            last = repr(answer)
        time.sleep(0.1)
    pytest.fail(f"it stays at: {last}")


def refusal(call: Callable[[], object], words: str) -> str:
    """The first refusal of `call` with `words` in it."""
    deadline, last = time.monotonic() + WITHIN_S, "no refusal"
    while time.monotonic() < deadline:
        try:
            last = repr(call())
        except DemandMissing as error:
            last = str(error)
            if words in last:
                return last
        time.sleep(0.1)
    pytest.fail(f"it stays at: {last}")


def asking(
    prometheus: Prometheus, promql: str, stale_s: float = STALE_S, **more: float
) -> Callable[[], float]:
    query = PrometheusQuery(prometheus.url, promql, stale_s=stale_s, **more)
    return lambda: ask(query, time.time()).servers


def test_what_is_scraped_is_the_demand_and_follows_it(exporter: Exporter, prometheus: Prometheus) -> None:
    exporter.samples = {'gpus_busy{pool="a"}': 12.0, 'gpus_busy{pool="b"}': 8.0, "servers_busy": 3.0}
    assert once(asking(prometheus, "servers_busy")) == 3
    assert once(asking(prometheus, "sum(gpus_busy)", servers_per_unit=0.125)) == 2.5
    source = PrometheusDemand(PrometheusQuery(prometheus.url, "servers_busy", stale_s=STALE_S), every_s=0.2)
    demand = once(lambda: source.read(time.time(), (), ()))
    assert abs(demand.at - time.time()) < STALE_S
    exporter.samples["servers_busy"] = 5.0
    once(lambda: source.read(time.time(), (), ()).servers, lambda servers: servers == 5)


def test_what_prometheus_cannot_say_in_one_number_is_refused_with_its_own_words(
    exporter: Exporter, prometheus: Prometheus
) -> None:
    exporter.samples = {'gpus_busy{pool="a"}': 12.0, 'gpus_busy{pool="b"}': 8.0, "servers_busy": -3.0}
    once(asking(prometheus, "sum(gpus_busy)"))
    assert "2 series" in refusal(asking(prometheus, "gpus_busy"), "series")
    assert "nothing matches" in refusal(asking(prometheus, "no_such_metric"), "no fresh sample")
    assert "parse error" in refusal(asking(prometheus, "sum(("), "refuses")
    assert "is -3.0" in refusal(asking(prometheus, "servers_busy"), "is -3.0")
    assert "is nan" in refusal(asking(prometheus, "0 * sum(gpus_busy) / 0"), "is nan")
    assert "matrix" in refusal(asking(prometheus, "gpus_busy[1m]"), "matrix")


def test_an_exporter_that_has_died_is_missing_demand(exporter: Exporter, prometheus: Prometheus) -> None:
    exporter.samples = {"servers_busy": 3.0}
    assert once(asking(prometheus, "servers_busy")) == 3
    exporter.server.server_close()
    assert "no fresh sample" in refusal(asking(prometheus, "servers_busy"), "no fresh sample")


def test_samples_older_than_the_bound_count_for_nothing(exporter: Exporter, prometheus: Prometheus) -> None:
    # Samples with a time of their own are what Prometheus would go on telling for five minutes.
    exporter.samples = {"servers_busy 3.0": int((time.time() - 60) * 1000), "alive": 1.0}
    assert once(asking(prometheus, "servers_busy", stale_s=280.0)) == 3
    said = refusal(asking(prometheus, "servers_busy"), "")
    assert "no fresh sample" in said or "s old" in said  # as the version has it
    assert once(asking(prometheus, "alive")) == 1


def test_a_prometheus_that_goes_away_and_comes_back(exporter: Exporter, prometheus: Prometheus) -> None:
    exporter.samples = {"servers_busy": 3.0}
    source = PrometheusDemand(PrometheusQuery(prometheus.url, "servers_busy", stale_s=3.0), every_s=0.2)
    assert once(lambda: source.read(time.time(), (), ()).servers) == 3
    prometheus.stop()
    assert "s old" in refusal(lambda: source.read(time.time(), (), ()), "cannot be asked")
    prometheus.start()
    assert once(lambda: source.read(time.time(), (), ()).servers) == 3
