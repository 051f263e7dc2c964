"""A connection that can be cut: a TCP proxy on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_CHUNK = 65536
_T = TypeVar("_T")


class Link:
    """Whoever connects to `port` is talking with `target` (a port of this machine), until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._through = asyncio.Event()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._loop.run_forever, name="link", daemon=True).start()
        self._server = self._do(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Reset every connection, and each new one at once."""
        self._do(self._cut())

    def stall(self) -> None:
        """Let nothing through; nobody is told. What was sent meanwhile arrives when it is opened again."""
        self._do(self._stall())

    def open(self) -> None:
        """Let everything through again."""
        self._do(self._open())

    def close(self) -> None:
        """For good."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _do(self, what: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout=10)

    async def _listen(self) -> asyncio.Server:
        self._through.set()
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _cut(self) -> None:
        self._refuses = True
        self._through.set()
        self._abort_all()

    async def _stall(self) -> None:
        self._through.clear()

    async def _open(self) -> None:
        self._refuses = False
        self._through.set()

    async def _close(self) -> None:
        self._server.close()
        self._abort_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._converse(reader, writer)
        writer.transport.abort()
        self._writers.discard(writer)
        self._tasks.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._through.wait()
        if self._refuses:
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.add(forth)
        try:
            await asyncio.gather(self._pump(reader, forth), self._pump(back, writer))
        finally:
            forth.transport.abort()
            self._writers.discard(forth)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            await self._through.wait()
            sink.write(data)
            await sink.drain()
        await self._through.wait()
        if sink.can_write_eof():
            sink.write_eof()
