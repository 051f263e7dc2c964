"""flexod's answers to questions of single pages: asked for once for all viewers, and never in a rush."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flexo_cli.connection import Daemon, Refusal, Unreachable
from flexo_web.feed import Client

FRESH_S: Final = 1.0
"""A question is asked again after this time, if somebody looks."""
_BETWEEN_S: Final = 0.1
"""The least time between two questions of a kind, whatever the number of viewers and pages."""
_TOO_OLD_S: Final = 10.0
"""An answer of before is not given away after this time, if flexod can answer anew soon."""
_SOON_S: Final = 1.0
_KEPT: Final = 256
_NOT_YET: Final = "flexod has not answered yet"
_Key = TypeVar("_Key", bound=Hashable)
_Reply = TypeVar("_Reply")


@dataclass(frozen=True, slots=True)
class Answer(Generic[_Reply]):
    """flexod's answer to one question."""

    reply: _Reply | None
    """None: flexod refuses it, or has not answered yet."""
    refusal: str = ""
    """The reason why there is no reply."""


@dataclass(slots=True)
class _Entry(Generic[_Reply]):
    answer: Answer[_Reply] | None = None
    asked_at: float = float("-inf")
    asking: asyncio.Task[None] | None = None


class Answers(Generic[_Key, _Reply]):
    """The newest answer to each question of one kind, such as flexod's explanation of each job."""

    def __init__(
        self,
        client: Client,
        ask: Callable[[Daemon, _Key], _Reply],
        fresh_s: float = FRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask`: asks flexod, in the client's thread. `fresh_s`: how long an answer is good for."""
        self._client = client
        self._question = ask
        self._fresh_s = fresh_s
        self._clock = clock
        self._turn = asyncio.Lock()
        self._entries: OrderedDict[_Key, _Entry[_Reply]] = OrderedDict()

    async def of(self, key: _Key) -> Answer[_Reply]:
        """The newest answer. While the question is asked again, the answer before, if it is not old."""
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > _KEPT:
            self._entries.popitem(last=False)
        if entry.asking is None and self._clock() - entry.asked_at >= self._fresh_s:
            entry.asking = asyncio.create_task(self._ask(key, entry))
        if entry.asking is not None:
            if entry.answer is None:
                await asyncio.shield(entry.asking)
            elif self._clock() - entry.asked_at >= self._fresh_s + _TOO_OLD_S:
                await asyncio.wait((entry.asking,), timeout=_SOON_S)
        return entry.answer or Answer(None, _NOT_YET)

    async def _ask(self, key: _Key, entry: _Entry[_Reply]) -> None:
        try:
            async with self._turn:
                entry.answer = await self._answer(key, entry.answer)
                await asyncio.sleep(_BETWEEN_S)
        finally:
            entry.asked_at, entry.asking = self._clock(), None

    async def _answer(self, key: _Key, before: Answer[_Reply] | None) -> Answer[_Reply]:
        try:
            return Answer(await self._client.call(lambda daemon: self._question(daemon, key)))
        except Refusal as error:
            return Answer(None, str(error))
        except Unreachable:  # the banner says it, once
            return before or Answer(None, _NOT_YET)
        except Exception as error:  # whatever it is: the banner says it, and what is known stays
            return before or Answer(None, str(error) or repr(error))
