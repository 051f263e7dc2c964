"""Threads that report their failure. Otherwise an exception would end its thread unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start(work: Callable[[], None], *, name: str, failed: Callable[[Exception], None]) -> threading.Thread:
    """Run `work` in a daemon thread. `failed`: called in that thread with an exception that ended `work`."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            failed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
