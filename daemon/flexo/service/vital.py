"""Starts threads that flexod cannot do without: an error that ends one ends flexod, and systemd starts it
again.

A thread that dies silently leaves a flexod that looks alive and does half of its work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

import structlog

_FAILED: Final = 1

_log = structlog.get_logger("flexo.service")


def start(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread in which `run` goes on until it returns, as it does when flexod ends."""

    def go() -> None:
        try:
            run()
        except BaseException:
            try:
                _log.critical(f"the thread '{name}' has failed: flexod ends; grants stand", exc_info=True)
            finally:
                os._exit(_FAILED)

    thread = threading.Thread(target=go, name=name, daemon=True)
    thread.start()
    return thread
