"""Threads of whose failure somebody hears: otherwise an exception ends its thread, and nobody notices."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start(work: Callable[[], None], *, name: str, failed: Callable[[Exception], None]) -> threading.Thread:
    """Run `work` in a daemon thread; `failed`, in that thread, hears of the exception that ended it."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            failed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
