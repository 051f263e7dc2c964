"""flexod beside others: it stands by until it has the leader lease, acts while it has the lease, and stands
by again.

While it stands by, it does not poll the cluster and reads no event store. It is the same process on the same
port. So leaders and people find the active flexod by asking one address after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import structlog

import flexo
from flexo.availability.leader_elector import LeaderElector
from flexo.availability.places import open_store
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.service.active import Active
from flexo.service.process import CannotServe, Process
from flexo.service.server import ServiceRouter
from flexo.service.standing_by import StandingBy, availability_of
from flexo_protos.v1 import admin_pb2

_LOOK_S: Final = 0.1
"""The interval between two checks whether this flexod's turn has come, or is over."""
_LEAVE_WITHIN_S: Final = 5.0
"""The time that the store of the lease may take to release it. After that, the lease runs out by itself."""

_log = structlog.get_logger("flexo.service")


class FailoverLoop:
    """Takes this flexod's turns as the active one. For the event loop's thread."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._elector = self._new_elector()
        self.router = ServiceRouter(StandingBy(self._about))

    async def take(self) -> None:
        """Take one turn after the other, until the process is to end. Raises CannotServe, TorchMissing."""
        while not self._process.ended.is_set():
            await self._take_one()
            self._elector = self._new_elector()

    def _new_elector(self) -> LeaderElector:
        settings = self._process.settings
        address, lease_s = settings.service.address, settings.high_availability.lease_s
        return LeaderElector(open_store(settings), address, lease_s)

    def _about(self) -> admin_pb2.Availability:
        settings = self._process.settings
        return availability_of(self._elector, settings.service.address, settings.high_availability.hosts)

    async def _take_one(self) -> None:
        elector, ended = self._elector, self._process.ended
        print(f"flexod {flexo.__version__} stands by: {self._process.settings.service.address}", flush=True)
        elector.start()
        try:
            await _until(lambda: elector.holds() or elector.lost or bool(elector.failed) or ended.is_set())
            if elector.holds() and not ended.is_set():
                await self._act(elector)
        finally:
            await asyncio.to_thread(elector.leave, _LEAVE_WITHIN_S)
        if elector.failed:
            raise CannotServe(f"the thread that keeps flexod's lease has failed: {elector.failed}")

    async def _act(self, elector: LeaderElector) -> None:
        settings, process, begun = self._process.settings, self._process, time.monotonic()
        address = settings.service.address
        _log.info("this flexod is the active one now", address=address, epoch=elector.epoch)
        kept = settings.event_store
        opened = await asyncio.to_thread(EventStore, kept.path, kept.keep_days, elector.epoch, kept.max_mib)
        with closing(opened) as event_store:
            text = f"the flexod at {address} becomes the active one (epoch {elector.epoch})"
            event_store.record(time.time(), (Event(time.time(), "daemon", None, text),))
            active = await asyncio.to_thread(
                Active.begin, settings, event_store, elector, process.counters, self._about
            )
            await asyncio.to_thread(process.begin_to_act, active, settings)
            over = asyncio.Event()
            watching = asyncio.create_task(_watch(elector, process.ended, over))
            try:
                async with active.acting(process.registry, over) as failed:
                    self.router.activate(active.services, elector)
                    print(
                        f"flexod {flexo.__version__} active: address {address}, epoch {elector.epoch},"
                        f" {time.monotonic() - begun:.2f} s after it got the lease",
                        flush=True,
                    )
                    await over.wait()
                    _log.info("flexod stands back; grants stand", lost_the_lease=elector.lost)
                    # leaders first: a command to the cluster may take long to end
                    active.close()
                    self.router.stand_by()
            finally:
                self.router.stand_by()
                watching.cancel()
                await asyncio.to_thread(process.stand_by)
        if failed.is_set():
            raise CannotServe("the controller has failed; its error stands above")


async def _watch(elector: LeaderElector, ended: asyncio.Event, over: asyncio.Event) -> None:
    """Set `over` when the turn is over. Only its own clock tells a flexod that it has lost its lease."""
    try:
        await _until(lambda: elector.lost or bool(elector.failed) or ended.is_set())
    finally:
        over.set()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(_LOOK_S)
