"""flexod while it acts: cluster, controller with its thread, and the services that answer for it.

A flexod that is alone is active from its beginning to its end; one beside others for the time of its turn. At
the end streams close and nothing else happens: grants stand, and training goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

import flexo
from flexo.availability.mandate import Mandate
from flexo.clusters import registry
from flexo.clusters.base import ActionRefused, Borrowed, CallEnded, Cluster, ClusterUnreachable, Site
from flexo.config import Settings
from flexo.controller import Controller
from flexo.journal import Journal
from flexo.metrics.happenings import Happenings
from flexo.metrics.present import Present
from flexo.service.admin_service import AdminService
from flexo.service.grant_key import grant_signer
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, Pace
from flexo.service.leaders import LeaderDesk
from flexo.service.lending_setup import lending_of, pushed_demand
from flexo.service.server import Services, all_services
from flexo_protos.v1 import admin_pb2

_log = structlog.get_logger("flexo.service")


@dataclass(frozen=True, slots=True)
class Active:
    """Built by `begin`; acts while `acting` lasts."""

    cluster: Cluster
    controller: Controller
    services: Services
    _desk: LeaderDesk
    _jobs: JobService
    _admin: AdminService
    _inference: InferenceService
    _metrics: Present
    _beside: Executor
    """Does what the controller need not wait for."""

    @classmethod
    def begin(
        cls,
        settings: Settings,
        journal: Journal,
        mandate: Mandate,
        happenings: Happenings,
        availability: Callable[[], admin_pb2.Availability | None],
    ) -> Active:
        """Reads the journal and finds the cluster, which may take a while; changes nothing.

        Raises TorchMissing.

        `availability`: what the status says of several flexods, if there are.
        """
        cluster = _connect(settings, happenings.command_ended, mandate)
        desk = LeaderDesk()
        pushed = pushed_demand(settings.loaning)
        lending = lending_of(settings, journal, pushed)
        beside = ThreadPoolExecutor(1, "beside")
        controller = Controller(
            settings,
            cluster,
            desk,
            journal,
            steady=time.monotonic,
            lending=lending,
            watch=happenings,
            beside=beside,
            signer=grant_signer(settings),
        )
        jobs = JobService(desk, controller, Pace(), mandate)
        admin = AdminService(controller, journal, desk, settings.service.administrators, availability)
        inference = InferenceService(pushed, _may_push(settings), desk.wake.set)
        services = all_services(jobs, admin, inference)
        metrics = Present(controller, journal)
        return cls(cluster, controller, services, desk, jobs, admin, inference, metrics, beside)

    def take(self, changed: Settings, news: str, unheeded: str) -> None:
        """Go by changed settings; see reloading.py."""
        self._admin.administrators = changed.service.administrators
        self._inference.users = _may_push(changed)
        self.controller.reconfigure(changed, news, unheeded)

    @contextlib.asynccontextmanager
    async def acting(
        self, registry: CollectorRegistry, over: asyncio.Event
    ) -> AsyncIterator[threading.Event]:
        """The controller goes round while the context lasts. `over` is set, and what is yielded, if it falls
        over before.

        The end of the context waits for the command that the cluster has been asked, and does not block the
        event loop, in which leaders are told meanwhile.
        """
        registry.register(self._metrics)
        try:
            async with controller_thread(
                self.controller, self._desk, asyncio.get_running_loop(), over
            ) as failed:
                yield failed
        finally:
            await asyncio.to_thread(self._beside.shutdown, cancel_futures=True)
            registry.unregister(self._metrics)

    def close(self) -> None:
        """End all streams."""
        self._jobs.close()
        self._inference.close()


async def say_ready(settings: Settings, cluster: Cluster) -> None:
    """One line for people and scripts; the cluster has no other user yet, as it must (it is not shared)."""
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
    controller: Controller, desk: LeaderDesk, loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> AsyncIterator[threading.Event]:
    """The controller goes round while the context lasts; `ended` is set if it falls over before."""
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
        desk.wake.set()
        await asyncio.to_thread(thread.join)


def _connect(settings: Settings, call_ended: CallEnded, mandate: Mandate) -> Cluster:
    loaning = settings.loaning
    borrowed = None
    if loaning.enabled:
        borrowed = Borrowed(
            loaning.partition, loaning.edit_command, loaning.satellite_partition, static=loaning.static
        )
    site = Site(borrowed, call_ended, mandate.check)
    return registry.connect(settings.cluster.kind, settings.of_cluster, site)


def _may_push(settings: Settings) -> frozenset[str]:
    return frozenset((*settings.service.administrators, *settings.loaning.inference_users))
