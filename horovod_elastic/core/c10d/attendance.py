"""Who takes part in the averages of gradients, in a generation that goes on without ranks that die.

All ranks that live know the same: it follows from the sums, which are the same everywhere.
"""

from __future__ import annotations

import threading


class Attendance:
    """The ranks of one generation. Any thread may call it."""

    def __init__(self, size: int) -> None:
        self._all = frozenset(range(size))
        self._lock = threading.Lock()
        self._present: frozenset[int] = self._all
        self._is_told = True

    def contribute(self, ranks: frozenset[int]) -> None:
        """Note that these ranks have contributed to an average, or to a part of it."""
        with self._lock:
            self._present = ranks if self._is_told else self._present | ranks
            self._is_told = False

    def absent(self) -> frozenset[int]:
        """The ranks that have contributed to no average of the last step.

        A step's averages are those between two calls of this method. Without any, those before count.
        """
        with self._lock:
            self._is_told = True
            return self._all - self._present
