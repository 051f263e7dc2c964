"""What the services with streams share: how a stream is read and written, and how flexod ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from flexo.service import wire
from flexo_protos.connections import hang_up_on

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    Context = grpc.aio.ServicerContext[bytes, bytes]

LAST_WRITE_WITHIN_S = 2.0
"""The time that a stream's end waits for a message that is being written."""

_T = TypeVar("_T")


class Refused(Exception):
    """flexod ends the stream: a status code, and a sentence for the caller and the log."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamWriter:
    """Writes the messages of a stream. A message under way is finished even when the stream is about to be
    refused: gRPC sends no status before that."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._saying: asyncio.Future[None] | None = None

    async def say(self, message: Message) -> None:
        """Send a message, and return when the connection has taken it. A caller that gives up waiting does
        not stop it."""
        self._saying = asyncio.ensure_future(self._context.write(message.SerializeToString()))
        await asyncio.shield(self._saying)

    async def say_within(self, seconds: float, message: Message, caller: str) -> None:
        """Send a message. If the `caller` does not read it in time, end its connection, and raise Refused."""
        try:
            async with asyncio.timeout(seconds):
                await self.say(message)
        except TimeoutError:
            # gRPC would keep message and call for as long as there is a connection
            await asyncio.to_thread(hang_up_on, {self._context.peer()})
            text = f"the {caller} has not read what it is told for {seconds:.0f} s"
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None

    async def finish(self) -> None:
        """Wait for the message under way, but not for a caller that never reads."""
        if self._saying is not None:
            await asyncio.wait({self._saying}, timeout=LAST_WRITE_WITHIN_S)
            if self._saying.done():
                self._saying.exception()  # if the connection has broken, that was noticed elsewhere


@contextmanager
def malformed_is_refused() -> Iterator[None]:
    """Turn wire.Malformed into a Refused with the status that says so."""
    try:
        yield
    except wire.Malformed as error:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error


async def until_one_ends(*ends: Coroutine[None, None, None]) -> None:
    """Run these side by side until one of them ends, and end the others. Raises what it has raised."""
    running = [asyncio.ensure_future(end) for end in ends]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def read(context: Context) -> bytes | None:
    """The next message, not parsed yet (authentication.py serves bytes); None at the stream's end."""
    message: object = await context.read()
    return message if isinstance(message, bytes) else None  # else it is grpc.aio.EOF


async def within(seconds: float, what: str, waiting: Awaitable[_T]) -> _T:
    """The result of `waiting`. Raises Refused if it takes longer."""
    # Not wait_for: before Python 3.12 it swallows a cancellation that comes as `waiting` ends.
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        text = f"no {what} for {seconds:.0f} s"
        raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None


async def unless_quiet(
    reading: Awaitable[bytes | None], what: str, interval_s: float, intervals: int
) -> bytes | None:
    """The next message. Raises Refused if none comes within so many intervals.

    Only time in which flexod could have received a message counts. After each interval, the event loop checks
    once more what has come, so that a busy flexod drops nobody.
    """
    said = asyncio.ensure_future(reading)
    try:
        for _ in range(intervals):
            done, _ = await asyncio.wait({said}, timeout=interval_s)
            if done:
                return said.result()
    finally:
        said.cancel()
    raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no {what} for {intervals * interval_s:.0f} s")
