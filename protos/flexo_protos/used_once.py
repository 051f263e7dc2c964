"""Remembers which credentials were used, so that each is taken once, where no daemon does that."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Final

OF_ONE_HOLDER: Final = 200_000
"""The most credentials of one holder that are remembered: some 30 MB. More are refused until some expire."""


class UsedOnce:
    """The credentials that were used and have not expired. Any thread may call it."""

    def __init__(self, of_one_holder: int = OF_ONE_HOLDER) -> None:
        self._of_one_holder = of_one_holder
        self._lock = threading.Lock()
        self._used: OrderedDict[tuple[Hashable, str], float] = OrderedDict()
        """The end of each credential, by holder and number; the one that was used first comes first."""
        self._held: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._used)

    def take(self, holder: Hashable, number: str, until: float, now: float) -> bool:
        """Whether the credential `number` of `holder` was not used before. It is used from now on.

        `until`: a time from which on the credential is refused as expired anyway.
        """
        with self._lock:
            self._forget_expired(now)
            if (holder, number) in self._used or self._held[holder] >= self._of_one_holder:
                return False
            self._used[holder, number] = until
            self._held[holder] += 1
            return True

    def _forget_expired(self, now: float) -> None:
        while self._used and next(iter(self._used.values())) <= now:
            (holder, _), _ = self._used.popitem(last=False)
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]
