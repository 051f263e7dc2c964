"""Lending as the configuration has it."""

from __future__ import annotations

import sys
import time

import pytest

from flexo.config import parse
from flexo.event_store.store import EventStore
from flexo.loaning.lstm import TorchMissing
from flexo.loaning.partition import PartitionDemand
from flexo.loaning.prometheus import PrometheusDemand
from flexo.loaning.pushed import PushedDemand
from flexo.model.loans import Demand, Loan
from flexo.service.lending_setup import lending_of, pushed_demand


@pytest.fixture
def event_store(tmp_path) -> EventStore:
    return EventStore(tmp_path / "journal.sqlite", 30)


def settings(text: str = "", enabled: str = "true"):
    return parse(f"[loaning]\nenabled = {enabled}\n{text}", "flexo.toml")


def source_of(text: str, event_store: EventStore):
    chosen = settings(text)
    lending = lending_of(chosen, event_store, pushed_demand(chosen.loaning))
    assert lending is not None
    return lending._source


def test_nothing_is_lent_unless_somebody_says_so(event_store):
    assert lending_of(settings(enabled="false"), event_store, None) is None
    assert pushed_demand(settings('source = "push"', enabled="false").loaning) is None


def test_each_source_of_demand_is_the_one_that_was_named(event_store):
    assert isinstance(source_of("", event_store), PartitionDemand)
    assert isinstance(source_of('source = "push"', event_store), PushedDemand)
    prometheus = 'source = "prometheus"\nprometheus_url = "http://127.0.0.1:1"\nprometheus_query = "up"'
    assert isinstance(source_of(prometheus, event_store), PrometheusDemand)


def test_rules_and_times_come_from_the_file(event_store):
    chosen = settings(
        'inference_partition = "serve"\npartition = "lent"\nsatellite_partition = "lent-flex"\n'
        "most_servers = 3\nreclaim_s = 100.0\npreempt_within_s = 30.0\nsave_within_s = 20.0\n"
        'checkpoint = "/s/%j"\nstatic = true\n'
    )
    lending = lending_of(chosen, event_store, None)
    assert lending is not None
    made = lending.settings
    assert (made.inference_partition, made.partition) == ("serve", "lent")
    assert made.satellite_partition == "lent-flex"
    assert (made.rules.most_servers, made.rules.reclaim_s, made.static) == (3, 100.0, True)
    assert (made.timing.preempt_within_s, made.timing.save_within_s) == (30.0, 20.0)


def test_no_time_is_kept_for_checkpoints_that_are_never_asked_for(event_store):
    lending = lending_of(settings("save_within_s = 50.0"), event_store, None)
    assert lending is not None
    assert lending.settings.timing.save_within_s == 0.0


def test_loans_and_demand_of_the_flexod_before_are_remembered(event_store):
    now = time.time()
    event_store.set_loans((Loan("i1", now - 5, "spare"),))
    for minute in range(5):
        event_store.add_demand(Demand(now - 60 * minute, 2.0, "test"))
    lending = lending_of(settings(), event_store, None)
    assert lending is not None
    assert [entry.node for entry in lending._ledger] == ["i1"]
    assert lending._forecast is not None
    assert lending._forecast.band(now, now + 60).highest >= 2.0


def test_without_a_forecast_only_what_is_needed_now_counts(event_store):
    lending = lending_of(settings('forecast = "none"'), event_store, None)
    assert lending is not None
    assert lending._forecast is None


def test_an_lstm_without_pytorch_is_refused_at_the_start(event_store, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TorchMissing):
        lending_of(settings('forecast = "lstm"'), event_store, None)
