"""One snapshot of flexod for all viewers: however many look, flexod answers one caller.

flexod is asked every second while somebody looks, and seldom otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from flexo_cli.connection import Daemon, Unreachable
from flexo_cli.live.picture import Picture, take

WATCHED_S: Final = 1.0
"""The time between two snapshots while somebody looks."""
UNWATCHED_S: Final = 30.0
"""The further time that passes while nobody looks."""
FRESH_WITHIN_S: Final = 2.0
"""The longest wait for a snapshot of now, when somebody begins to look."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Away:
    """flexod does not answer. Times are seconds since the epoch."""

    since_at: float
    details: str
    """Where, and why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest picture of flexod. Each attempt to take one makes a snapshot, with the next number."""

    number: int = 0
    picture: Picture | None = None
    """The last one that was taken; None: flexod has not answered yet."""
    away: Away | None = None


class Client:
    """Calls flexod in a thread of its own, so that pages are served while flexod hangs."""

    def __init__(self, connect: Callable[[], Daemon]) -> None:
        self._connect = connect
        self._daemon: Daemon | None = None
        self._thread = ThreadPoolExecutor(1, "flexod")

    async def call(self, ask: Callable[[Daemon], _T]) -> _T:
        """The result of `ask`. A failed connection is replaced: it would wait longer before each attempt."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, ask)

    def _in_thread(self, ask: Callable[[Daemon], _T]) -> _T:
        self._daemon = self._daemon or self._connect()
        try:
            return ask(self._daemon)
        except Unreachable:
            self._daemon = None
            raise


class Feed:
    """Takes snapshots and wakes those who wait for the next one."""

    def __init__(
        self, client: Client, clock: Callable[[], float] = time.time, watched_s: float = WATCHED_S
    ) -> None:
        self._client = client
        self._clock = clock
        self._watched_s = watched_s
        self._viewers = 0
        self._looked_at = asyncio.Event()
        self._rests = False
        self._next = asyncio.Event()
        self.now = Snapshot()

    async def run(self) -> None:
        """Take snapshots until cancelled."""
        while True:
            self.now = await self._taken()
            told, self._next = self._next, asyncio.Event()
            told.set()
            await self._pause()

    async def after(self, number: int) -> Snapshot:
        """The newest snapshot, once its number is above `number`."""
        while self.now.number <= number:
            await self._next.wait()
        return self.now

    async def fresh(self) -> Snapshot:
        """The newest snapshot for somebody who begins to look: one of now, unless flexod takes long."""
        if self._rests:
            self._looked_at.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(FRESH_WITHIN_S):
                    return await self.after(self.now.number)
        return self.now

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Somebody looks while the context lasts."""
        self._viewers += 1
        self._looked_at.set()
        try:
            yield
        finally:
            self._viewers -= 1

    async def _taken(self) -> Snapshot:
        number, at = self.now.number + 1, self._clock()
        try:
            return Snapshot(number, await self._client.call(lambda daemon: take(daemon, at)))
        except Exception as error:  # whatever it is, viewers must see it, and the next attempt follows
            since = self.now.away.since_at if self.now.away else at
            details = error.for_viewers if isinstance(error, Unreachable) else str(error) or repr(error)
            return Snapshot(number, self.now.picture, Away(since, details))

    async def _pause(self) -> None:
        await asyncio.sleep(self._watched_s)
        if self._viewers:
            return
        self._looked_at.clear()
        self._rests = True
        with suppress(TimeoutError):
            async with asyncio.timeout(UNWATCHED_S):
                await self._looked_at.wait()
        self._rests = False
