"""Passes messages between the streams of pool Aggregators and the controller's thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from flexo.model.aggregation import Drain, Eviction, PoolAggregator

MOST_WAITING: Final = 1_000
"""The most messages that wait for one Aggregator. The controller repeats an eviction that is lost."""


class AggregatorConnection:
    """One attached Aggregator, as its stream holds it. Methods are for the event loop's thread."""

    def __init__(self, aggregator: PoolAggregator, peer: str) -> None:
        self.aggregator = aggregator
        self.peer = peer
        self.replaced_by = ""
        """Peer of a newer stream of the same Aggregator, once there is one."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._replaced = asyncio.Event()
        self._waiting: deque[Eviction | Drain] = deque(maxlen=MOST_WAITING)

    async def next_to_tell(self) -> Eviction | Drain:
        """Wait for an eviction or a drain."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    async def until_replaced(self) -> None:
        """Wait for a newer stream of the same Aggregator."""
        await self._replaced.wait()

    def replace(self, peer: str) -> None:
        """Note that a newer stream of this Aggregator has come from `peer`."""
        self.replaced_by = peer
        self._replaced.set()

    def tell_from_thread(self, told: Eviction | Drain) -> None:
        """Tell the Aggregator. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._tell, told)

    def _tell(self, told: Eviction | Drain) -> None:
        self._waiting.append(told)
        self._news.set()


class AggregatorRegistry:
    """All attached Aggregators, by host and port."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when the controller should not wait for its next cycle."""
        self._wake = wake
        self._lock = threading.Lock()
        self._connections: dict[str, AggregatorConnection] = {}

    # For the controller's thread.

    def attached(self) -> tuple[PoolAggregator, ...]:
        """Each attached Aggregator with its last status."""
        with self._lock:
            return tuple(connection.aggregator for connection in self._connections.values())

    def evict(self, eviction: Eviction) -> None:
        """Have an Aggregator close a job's connections. Nothing happens if the Aggregator is away."""
        self._tell(eviction)

    def drain(self, aggregator: str) -> None:
        """Have an Aggregator end. Nothing happens if the Aggregator is away."""
        self._tell(Drain(aggregator))

    def _tell(self, told: Eviction | Drain) -> None:
        with self._lock:
            connection = self._connections.get(told.aggregator)
        if connection is not None:
            connection.tell_from_thread(told)

    # For the event loop's thread.

    def attach(self, connection: AggregatorConnection) -> None:
        """Take a stream up. It replaces an older one of the same host and port."""
        name = connection.aggregator.name
        with self._lock:
            older = self._connections.get(name)
            self._connections[name] = connection
        if older is not None:
            older.replace(connection.peer)
        self._wake()

    def update(self, connection: AggregatorConnection, aggregator: PoolAggregator) -> None:
        """Note a status. Only an Aggregator that has to end wakes the controller."""
        with self._lock:
            before, connection.aggregator = connection.aggregator, aggregator
        if before.leaving != aggregator.leaving:
            self._wake()

    def detach(self, connection: AggregatorConnection) -> None:
        """Note that a stream has ended. The end of a replaced one changes nothing else."""
        name = connection.aggregator.name
        with self._lock:
            if self._connections.get(name) is not connection:
                return
            del self._connections[name]
        self._wake()
