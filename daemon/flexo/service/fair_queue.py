"""A queue in which callers take turns: a caller with many requests does not delay a caller with one."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Evicted(Exception):
    """The request had waited longest of a caller with too many waiting requests."""


class FairQueue:
    """Lets a number of requests proceed at a time, from one caller after the other. For one event loop's
    thread."""

    def __init__(
        self,
        at_once: int,
        *,
        of_one: int | None = None,
        waiting: int | None = None,
        waiting_of_one: int | None = None,
    ) -> None:
        """`at_once`, `of_one`: the most requests that proceed, of all callers and of one.

        `waiting`, `waiting_of_one`: the most requests that wait, of all callers and of one. One more evicts
        the oldest of the same caller, or of the caller that has most: a caller that comes once gets its turn
        whatever others do.
        """
        self._at_once, self._of_one = at_once, at_once if of_one is None else of_one
        self._most, self._most_of_one = waiting, waiting_of_one
        self._running: Counter[Hashable] = Counter()
        self._all_running = 0
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._count = 0

    @asynccontextmanager
    async def turn(self, caller: Hashable) -> AsyncIterator[None]:
        """Wait for a turn of `caller`, which lasts as long as the context. Raises Evicted."""
        await self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    async def enter(self, caller: Hashable) -> None:
        """Wait for a turn. Whoever gets it must call `leave`. Raises Evicted."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(mine)
        self._count += 1
        self._make_room(caller)
        self._proceed()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self.leave(caller)
            else:
                self._forget(caller, mine)
            raise

    def leave(self, caller: Hashable) -> None:
        """End a turn of `caller`."""
        self._all_running -= 1
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._proceed()

    def _make_room(self, caller: Hashable) -> None:
        if self._most_of_one is not None and len(self._waiting[caller]) > self._most_of_one:
            self._evict(caller)
        elif self._most is not None and self._count > self._most:
            self._evict(max(self._waiting, key=lambda each: len(self._waiting[each])))

    def _evict(self, caller: Hashable) -> None:
        oldest = self._waiting[caller][0]
        self._forget(caller, oldest)
        if not oldest.done():
            oldest.set_exception(Evicted())

    def _forget(self, caller: Hashable, one: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(caller)
        if waiting is None or one not in waiting:
            return
        waiting.remove(one)
        self._count -= 1
        if not waiting:
            del self._waiting[caller]

    def _proceed(self) -> None:
        while self._all_running < self._at_once:
            caller = next((each for each in self._waiting if self._running[each] < self._of_one), None)
            if caller is None:
                return
            first = self._waiting[caller][0]
            self._forget(caller, first)
            if caller in self._waiting:
                self._waiting.move_to_end(caller)
            if not first.done():
                self._all_running += 1
                self._running[caller] += 1
                first.set_result(None)
