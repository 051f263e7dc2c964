"""Makes lending as [loaning] of the configuration says: the source of demand, the forecast, and the rules."""

from __future__ import annotations

import time
from typing import Final

from flexo.config import Settings
from flexo.event_store.store import EventStore
from flexo.loaning.demand import DemandSource
from flexo.loaning.forecast import Predictor, learn
from flexo.loaning.in_background import InBackground
from flexo.loaning.lending import Lending
from flexo.loaning.lending_cycle import LendingSettings
from flexo.loaning.lstm import LstmMethod
from flexo.loaning.orchestrator import Rules
from flexo.loaning.partition import PartitionDemand
from flexo.loaning.prometheus import PrometheusDemand, PrometheusQuery
from flexo.loaning.pushed import PushedDemand
from flexo.loaning.reclaim_steps import Timing
from flexo.loaning.settings import LoaningSettings

_LEARN_FROM_S: Final = 35 * 86_400.0
"""The history that a forecast learns from: five weeks, so that every hour of the week has been seen a few
times."""


def pushed_demand(loaning: LoaningSettings) -> PushedDemand | None:
    """The pushes of the inference cluster's scheduler; None if they are not the source of demand."""
    if not loaning.enabled or loaning.source != "push":
        return None
    return PushedDemand(loaning.inference_partition, loaning.stale_s)


def lending_of(settings: Settings, event_store: EventStore, pushed: PushedDemand | None) -> Lending | None:
    """Lending as configured; None: no servers are lent. Raises TorchMissing if the LSTM is configured and
    PyTorch is missing."""
    loaning = settings.loaning
    if not loaning.enabled:
        return None
    return Lending(
        LendingSettings(
            inference_partition=loaning.inference_partition,
            partition=loaning.partition,
            rules=_rules(loaning),
            timing=_timing(loaning),
            edit_interval_s=loaning.edit_interval_s,
            static=loaning.static,
            satellite_partition=loaning.satellite_partition,
        ),
        pushed or _source(loaning),
        forecast=_forecast(loaning, event_store),
        remembered=event_store.loans(),
        left_alone=event_store.left_alone(),
        dry_run=settings.controller.dry_run,
    )


def _rules(loaning: LoaningSettings) -> Rules:
    return Rules(
        headroom_servers=loaning.headroom_servers,
        headroom_share=loaning.headroom_share,
        most_servers=loaning.most_servers,
        most_per_interval=loaning.most_per_interval,
        interval_s=loaning.interval_s,
        rest_s=loaning.rest_s,
        hysteresis_servers=loaning.hysteresis_servers,
        reclaim_s=loaning.reclaim_s,
    )


def _timing(loaning: LoaningSettings) -> Timing:
    return Timing(
        save_within_s=loaning.save_within_s if loaning.checkpoint else 0.0,
        preempt_within_s=loaning.preempt_within_s,
        force_within_s=loaning.force_within_s,
    )


def _source(loaning: LoaningSettings) -> DemandSource:
    if loaning.source == "prometheus":
        query = PrometheusQuery(
            loaning.prometheus_url,
            loaning.prometheus_query,
            loaning.servers_per_unit,
            stale_s=loaning.stale_s,
        )
        return PrometheusDemand(query, loaning.every_s)
    return PartitionDemand(loaning.inference_partition)


def _forecast(loaning: LoaningSettings, event_store: EventStore) -> Predictor | None:
    """The configured forecast, with the demand that the event store remembers; None: no forecast."""
    if loaning.forecast == "none":
        return None
    predictor = Predictor(interval_s=loaning.interval_s)
    if loaning.forecast == "lstm":
        slow = LstmMethod()
        slow.check()
        predictor = Predictor(interval_s=loaning.interval_s, method=InBackground(slow, learn))
    for demand in event_store.demand(time.time() - _LEARN_FROM_S, loaning.interval_s):
        predictor.note(demand.at, demand.servers)
    return predictor
