"""Starts the threads beside flexod's event loop, all of them at once.

A pool starts a thread when it has none to spare. With such pools, flexod had one more thread, now and then,
after a moment that was busier than all before.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""The number of threads that asyncio would come to have."""


def start_workers(loop: asyncio.AbstractEventLoop) -> None:
    """Give the loop the threads of asyncio.to_thread. The loop ends them."""
    loop.set_default_executor(started_pool(THREADS, "worker"))


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool that starts all its threads now and none later, however busy it gets."""
    pool = ThreadPoolExecutor(threads, name)
    together = threading.Barrier(threads)
    for _ in range(threads):
        pool.submit(together.wait)
    return pool
