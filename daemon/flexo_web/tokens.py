"""The secrets of one-time links and of sessions, and who may use each. They live in this process only."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user of the cluster who looks at pages, as a credential or the site's proxy has proven."""

    uid: int
    name: str
    """The account's name, as jobs have it; its number if it has no name."""


class Tokens:
    """Secrets of one kind. Only their hashes are kept, and each ends after its lifetime."""

    def __init__(
        self,
        lifetime_s: float,
        of_one_user: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`of_one_user`: the most tokens of a user; one more ends the user's oldest."""
        self.lifetime_s = lifetime_s
        self._of_one_user = of_one_user
        self._clock = clock
        self._held: OrderedDict[bytes, tuple[Viewer, float]] = OrderedDict()
        """Viewer and end of each token, by hash; the oldest comes first."""

    def issue(self, viewer: Viewer) -> str:
        """Make a new token of `viewer`."""
        self._forget_ended()
        own = [key for key, (holder, _) in self._held.items() if holder.uid == viewer.uid]
        for key in own[: len(own) + 1 - self._of_one_user]:
            del self._held[key]
        token = secrets.token_urlsafe(32)
        self._held[_hash(token)] = viewer, self._clock() + self.lifetime_s
        return token

    def holder(self, token: str) -> Viewer | None:
        """The viewer of `token`; None if it is unknown, used or over."""
        viewer, ends_at = self._held.get(_hash(token), (None, 0.0))
        return viewer if self._clock() < ends_at else None

    def withdraw(self, token: str) -> Viewer | None:
        """End `token`. Returns its viewer as `holder` does."""
        viewer = self.holder(token)
        self._held.pop(_hash(token), None)
        return viewer

    def _forget_ended(self) -> None:
        now = self._clock()
        while self._held and next(iter(self._held.values()))[1] <= now:
            self._held.popitem(last=False)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
