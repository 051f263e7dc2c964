"""flexod has as many threads after an hour as it had in the beginning."""

from __future__ import annotations

import asyncio
import threading
import time

from flexo.service.workers import THREADS, start_workers


def test_no_thread_is_started_later_however_busy_it_gets() -> None:
    async def counts() -> list[int]:
        before = threading.active_count()
        start_workers(asyncio.get_running_loop())
        started = threading.active_count()
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(10 * THREADS)))
        return [started - before, threading.active_count() - before]

    assert asyncio.run(counts()) == [THREADS, THREADS]
