"""Collects cyclic garbage from time to time, for at most a thousandth of the time.

flexod makes Python collect seldom (flexod.py), because on a large cluster collecting took a fifth of the
loop's time. On a small cluster, the garbage of streams and tasks then piled up for most of an hour.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

EVERY_S: Final = 60.0
SHARE: Final = 0.001
"""The largest part of the time for collections: all threads wait for a collection."""


def pause_s(took_s: float) -> float:
    """The pause after a collection that took `took_s`."""
    return max(EVERY_S, took_s / SHARE)


@asynccontextmanager
async def garbage_collected(first_s: float = EVERY_S) -> AsyncIterator[None]:
    """Collect garbage while the context lasts, for the first time `first_s` from now."""
    task = asyncio.create_task(_collect(first_s))
    try:
        yield
    finally:
        task.cancel()


async def _collect(wait_s: float) -> None:
    while True:
        await asyncio.sleep(wait_s)
        began = time.perf_counter()
        gc.collect()
        wait_s = pause_s(time.perf_counter() - began)
