"""The store in which groups of torch.distributed find their members' addresses. Every rank has a full copy.

A rank sends each value to rank 0. Rank 0 sends it to all ranks, together with other values put meanwhile. So
n ranks meet with 2n messages. A store that each rank asks for the key of each other rank answers n² times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist


class BroadcastStore(dist.Store):  # type: ignore[misc]
    """A torch.distributed.Store. `put`: sends a value to rank 0 and so to all ranks, including this one."""

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._put = put
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = ""

    def heard(self, key: str, value: bytes) -> None:
        """Store a value that rank 0 has sent to all ranks."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Close the store, because no more values will come. Waiting calls raise RuntimeError(`why`)."""
        with self._changed:
            self._closed = self._closed or why
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        """See Store.set."""
        self._put(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """See Store.get. Waits until the key is there."""
        return self._wait([key], self.timeout)[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """See Store.wait."""
        self._wait(keys, timeout or self.timeout)

    def check(self, keys: list[str]) -> bool:
        """See Store.check."""
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
