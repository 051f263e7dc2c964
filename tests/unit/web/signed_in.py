"""What tests hold that look at flexo-web's pages (the fixture `browser`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.testclient import TestClient

Browser = Callable[..., TestClient]
"""Of a uid; the browser of that user, who has signed in."""
URL = "http://127.0.0.1:6837"
_WITHIN_S = 30.0


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
