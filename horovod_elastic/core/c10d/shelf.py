"""The store in which groups of torch.distributed find their members' addresses: every rank has all of it.

What a rank puts is told to all by rank 0, together with what others have put meanwhile. So n ranks meet with
2n messages; a store that is asked for each key of each other rank answers n² times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist


class Shelf(dist.Store):  # type: ignore[misc]
    """A torch.distributed.Store. `put` tells rank 0, and by it everybody, this rank too."""

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._put = put
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = ""

    def heard(self, key: str, value: bytes) -> None:
        """Somebody has put it."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Nothing more will come: who waits gets RuntimeError."""
        with self._changed:
            self._closed = self._closed or why
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        """As Store.set."""
        self._put(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """As Store.get: waits until it is there."""
        return self._wait([key], self.timeout)[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """As Store.wait."""
        self._wait(keys, timeout or self.timeout)

    def check(self, keys: list[str]) -> bool:
        """As Store.check."""
        with self._changed:
            return all(key in self._values for key in keys)

    def _wait(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        limit = time.monotonic() + timeout.total_seconds()
        with self._changed:
            while not all(key in self._values for key in keys):
                if self._closed:
                    raise RuntimeError(self._closed)
                if not self._changed.wait(limit - time.monotonic()):
                    raise RuntimeError("a member's address did not come in time")
            return [self._values[key] for key in keys]
