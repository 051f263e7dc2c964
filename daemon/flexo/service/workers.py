"""The threads beside flexod's event loop (asyncio.to_thread), all of them started at once.

A pool starts a thread when it has none to spare. So flexod had one more, now and then, after a moment that
was busier than all before.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""As many as asyncio would come to have."""


def start_workers(loop: asyncio.AbstractEventLoop) -> None:
    """Give the loop its threads; it ends them."""
    pool = ThreadPoolExecutor(THREADS, "worker")
    together = threading.Barrier(THREADS)
    for _ in range(THREADS):
        pool.submit(together.wait)
    loop.set_default_executor(pool)
