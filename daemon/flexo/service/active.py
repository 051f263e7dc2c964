"""The active part of flexod: cluster, controller with its thread, and the services that answer for it.

A single flexod is active from its beginning to its end. One of several flexods is active while it holds the
leader lease. At the end streams close and nothing else happens: grants stand, and training goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

import flexo
from flexo.availability.leadership_guard import LeadershipGuard
from flexo.clusters import registry
from flexo.clusters.base import ActionRefused, Borrowed, CallEnded, Cluster, ClusterUnreachable, Site
from flexo.config import Settings
from flexo.control.pooled_aggregation import PooledAggregation
from flexo.control.views import Unheeded
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.metrics.counters import Counters
from flexo.metrics.present import Present
from flexo.notices.settings import NoticesSettings
from flexo.service.admin_service import AdminService
from flexo.service.aggregator_registry import AggregatorRegistry
from flexo.service.aggregator_service import AggregatorService
from flexo.service.announcing import Announcing
from flexo.service.grant_key import grant_signer
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import LeaderRegistry
from flexo.service.lending_setup import lending_of, pushed_demand
from flexo.service.server import Services, all_services
from flexo.service.web_accounts import web_accounts
from flexo.service.workers import started_pool
from flexo_protos.v1 import admin_pb2

_log = structlog.get_logger("flexo.service")


@dataclass(frozen=True, slots=True)
class Active:
    """The parts of an active flexod. `begin` makes them; they act while `acting` lasts."""

    cluster: Cluster
    controller: Controller
    services: Services
    _leaders: LeaderRegistry
    _jobs: JobService
    _admin: AdminService
    _inference: InferenceService
    _aggregators: AggregatorService
    _metrics: Present
    _announcing: Announcing
    _beside: Executor
    """Serial executor for work that the controller does not await."""

    @classmethod
    def begin(
        cls,
        settings: Settings,
        event_store: EventStore,
        leadership: LeadershipGuard,
        counters: Counters,
        availability: Callable[[], admin_pb2.Availability | None],
    ) -> Active:
        """Read the event store and find the cluster, which may take a while; change nothing. Raises
        TorchMissing.

        `availability`: returns the status of several flexods; None if there is only one.
        """
        cluster = _connect(settings, counters.command_ended, leadership)
        leaders = LeaderRegistry()
        pushed = pushed_demand(settings.loaning)
        lending = lending_of(settings, event_store, pushed)
        pool = AggregatorRegistry(leaders.wake.set) if settings.aggregation.enabled else None
        beside = started_pool(1, "beside")
        silent = settings.controller.dry_run
        announcing = Announcing(counters, NoticesSettings() if silent else settings.notices)
        controller = Controller(
            settings,
            cluster,
            leaders,
            event_store,
            steady=time.monotonic,
            lending=lending,
            watch=announcing,
            beside=beside,
            signer=grant_signer(settings),
            aggregation=_pooled(settings, pool, leaders),
        )
        jobs = JobService(leaders, controller, ServiceTimeouts(), leadership, trials=controller.trials_of)
        admin = AdminService(
            *(controller, event_store, leaders, settings.service.administrators, availability),
            readers=settings.service.readers,
            web_accounts=web_accounts(settings.service.web_steering),
        )
        inference = InferenceService(pushed, _may_push(settings), leaders.wake.set)
        users = frozenset(settings.aggregation.pool_users)
        aggregators = AggregatorService(pool, users, leadership=leadership)
        services = all_services(jobs, admin, inference, aggregators)
        metrics = Present(controller, event_store)
        return cls(
            *(cluster, controller, services, leaders, jobs, admin, inference, aggregators, metrics),
            *(announcing, beside),
        )

    def take(self, changed: Settings, news: str, unheeded: Unheeded) -> None:
        """Apply changed settings; see reloading.py."""
        self._admin.administrators = changed.service.administrators
        self._admin.readers = changed.service.readers
        self._admin.web_accounts = web_accounts(changed.service.web_steering)
        self._inference.users = _may_push(changed)
        self.controller.reconfigure(changed, news, unheeded)

    @contextlib.asynccontextmanager
    async def acting(
        self, registry: CollectorRegistry, over: asyncio.Event
    ) -> AsyncIterator[threading.Event]:
        """Run the controller while the context lasts. If the controller fails before, `over` is set, and so
        is the yielded event.

        The end of the context waits for the command that the cluster is carrying out. It does not block the
        event loop, which still serves leaders meanwhile.
        """
        registry.register(self._metrics)
        try:
            async with controller_thread(
                self.controller, self._leaders, asyncio.get_running_loop(), over
            ) as failed:
                yield failed
        finally:
            await asyncio.to_thread(self._beside.shutdown, cancel_futures=True)
            await asyncio.to_thread(self._announcing.close)
            registry.unregister(self._metrics)

    def close(self) -> None:
        """End all streams."""
        self._jobs.close()
        self._inference.close()
        self._aggregators.close()


async def say_ready(settings: Settings, cluster: Cluster) -> None:
    """Print one line for people and scripts. Nothing else uses `cluster` yet, as it is not made for several
    threads."""
    try:
        traits = await asyncio.to_thread(cluster.traits)
        found = f"{traits.software} {traits.version} (cluster {traits.name})"
    except (ClusterUnreachable, ActionRefused) as error:
        found = f"{cluster.software} does not answer yet: {error}"
    policy = settings.controller.policy + (" (dry run)" if settings.controller.dry_run else "")
    ready = f"flexod {flexo.__version__} ready: address {settings.service.address}, policy {policy}, {found}"
    with contextlib.suppress(OSError):  # a full disk
        print(ready, flush=True)


@contextlib.asynccontextmanager
async def controller_thread(
    controller: Controller, leaders: LeaderRegistry, loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> AsyncIterator[threading.Event]:
    """Run the controller in a thread while the context lasts. If it fails before, `ended` is set, and so is
    the yielded event."""
    stop, failed = threading.Event(), threading.Event()

    def go_round() -> None:
        try:
            controller.run(stop)
        except BaseException:  # whatever it is: without this thread nothing is granted or extended
            _log.exception("the controller has failed")
            failed.set()
            loop.call_soon_threadsafe(ended.set)

    thread = threading.Thread(target=go_round, name="controller")
    thread.start()
    try:
        yield failed
    finally:
        stop.set()
        leaders.wake.set()
        await asyncio.to_thread(thread.join)


def _connect(settings: Settings, call_ended: CallEnded, leadership: LeadershipGuard) -> Cluster:
    loaning = settings.loaning
    borrowed = None
    if loaning.enabled:
        borrowed = Borrowed(
            loaning.partition, loaning.edit_command, loaning.satellite_partition, static=loaning.static
        )
    site = Site(borrowed, settings.sharing.partition, call_ended, leadership.check)
    return registry.connect(settings.cluster.kind, settings.of_cluster, site)


def _pooled(
    settings: Settings, pool: AggregatorRegistry | None, leaders: LeaderRegistry
) -> PooledAggregation | None:
    return None if pool is None else PooledAggregation(settings.aggregation, pool, leaders.assign)


def _may_push(settings: Settings) -> frozenset[str]:
    return frozenset((*settings.service.administrators, *settings.loaning.inference_users))
