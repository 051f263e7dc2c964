"""flexod's explanations of single jobs, asked for once for all viewers of a job, and never in a rush."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Refusal
from flexo_protos.v1 import admin_pb2
from flexo_web.feed import Client

FRESH_S: Final = 1.0
"""An explanation is asked for again after this time, if somebody looks."""
_BETWEEN_S: Final = 0.1
"""The least time between two questions, whatever the number of viewers and jobs."""
_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Explained:
    """flexod's answer on one job."""

    reply: admin_pb2.ExplainJobReply | None
    """None: flexod knows no such job, or has not answered yet."""
    refusal: str = ""
    """The reason why there is no reply."""


@dataclass(slots=True)
class _Entry:
    explained: Explained | None = None
    asked_at: float = float("-inf")
    asking: asyncio.Task[None] | None = None


class Explanations:
    """The newest explanation of each job that is looked at."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._turn = asyncio.Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    async def of(self, job_id: int) -> Explained:
        """The newest explanation. While another question about the job is under way, the one before it."""
        entry = self._entries.setdefault(job_id, _Entry())
        self._entries.move_to_end(job_id)
        if len(self._entries) > _KEPT:
            self._entries.popitem(last=False)
        if entry.asking is None and self._clock() - entry.asked_at >= FRESH_S:
            entry.asking = asyncio.create_task(self._ask(job_id, entry))
        if entry.explained is None and entry.asking is not None:
            await asyncio.shield(entry.asking)
        return entry.explained or Explained(None, "flexod has not answered yet")

    async def _ask(self, job_id: int, entry: _Entry) -> None:
        try:
            async with self._turn:
                entry.explained = await self._answer(job_id, entry.explained)
                await asyncio.sleep(_BETWEEN_S)
        finally:
            entry.asked_at, entry.asking = self._clock(), None

    async def _answer(self, job_id: int, before: Explained | None) -> Explained:
        try:
            return Explained(await self._client.call(lambda daemon: daemon.explain(job_id)))
        except Refusal as error:
            return Explained(None, str(error))
        except Exception as error:  # whatever it is: the banner says it, and what is known stays
            return before or Explained(None, str(error) or repr(error))
