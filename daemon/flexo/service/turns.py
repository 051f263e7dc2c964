"""flexod beside others: it stands by until it has the lease, acts while it has it, and stands by again.

While it stands by it asks the cluster nothing and reads no journal. It is the same process and the same port,
so that leaders and people find whoever is active by asking one address after the other.
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
from flexo.events import Event
from flexo.journal import Journal
from flexo.service.active import Active
from flexo.service.process import CannotServe, Process
from flexo.service.server import Switchboard
from flexo.service.standing_by import StandingBy, availability_of
from flexo_protos.v1 import admin_pb2

_LOOK_S: Final = 0.1
"""Between two looks at whether the turn has come, or is over."""
_LEAVE_WITHIN_S: Final = 5.0
"""How long the store of the lease may take to be told that this flexod leaves; else the lease runs out."""

_log = structlog.get_logger("flexo.service")


class Turns:
    """For the event loop's thread."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._elector = self._new_elector()
        self.switchboard = Switchboard(StandingBy(self._about))

    async def take(self) -> None:
        """One turn after the other, until the process is to end. Raises CannotServe, TorchMissing."""
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
        kept = settings.journal
        opened = await asyncio.to_thread(Journal, kept.path, kept.keep_days, elector.epoch, kept.max_mib)
        with closing(opened) as journal:
            text = f"the flexod at {address} becomes the active one (epoch {elector.epoch})"
            journal.record(time.time(), (Event(time.time(), "daemon", None, text),))
            active = await asyncio.to_thread(
                Active.begin, settings, journal, elector, process.happenings, self._about
            )
            await asyncio.to_thread(process.begin_to_act, active, settings)
            over = asyncio.Event()
            watching = asyncio.create_task(_watch(elector, process.ended, over))
            try:
                async with active.acting(process.registry, over) as failed:
                    self.switchboard.activate(active.services, elector)
                    print(
                        f"flexod {flexo.__version__} active: address {address}, epoch {elector.epoch},"
                        f" {time.monotonic() - begun:.2f} s after it got the lease",
                        flush=True,
                    )
                    await over.wait()
                    _log.info("flexod stands back; grants stand", lost_the_lease=elector.lost)
                    # leaders first: what the cluster has been asked may take long to end
                    active.close()
                    self.switchboard.stand_by()
            finally:
                self.switchboard.stand_by()
                watching.cancel()
                await asyncio.to_thread(process.stand_by)
        if failed.is_set():
            raise CannotServe("the controller has failed; its error stands above")


async def _watch(elector: LeaderElector, ended: asyncio.Event, over: asyncio.Event) -> None:
    """Sets `over` when the turn is: nobody tells a flexod that it has lost its lease but its own clock."""
    try:
        await _until(lambda: elector.lost or bool(elector.failed) or ended.is_set())
    finally:
        over.set()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(_LOOK_S)
