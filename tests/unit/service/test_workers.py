"""flexod has as many threads after an hour as it had in the beginning."""

from __future__ import annotations

import asyncio
import threading
import time

from flexo.service.workers import THREADS, start_workers, started_pool


def threads_of(pool: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(f"{pool}_")}


def test_no_thread_is_started_later_however_busy_it_gets() -> None:
    async def counts() -> list[int]:
        others = threads_of("worker")  # of loops before, which may end meanwhile
        start_workers(asyncio.get_running_loop())
        started = threads_of("worker") - others
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(10 * THREADS)))
        return [len(started), len(threads_of("worker") - others)]

    assert asyncio.run(counts()) == [THREADS, THREADS]


def test_a_pool_of_its_own_has_all_its_threads_before_its_first_work() -> None:
    with started_pool(3, "some") as pool:
        assert len(threads_of("some")) == 3
        assert list(pool.map(lambda number: 2 * number, range(30))) == list(range(0, 60, 2))
        assert len(threads_of("some")) == 3
