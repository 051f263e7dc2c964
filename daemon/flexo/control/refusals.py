"""What the cluster has refused lately: written down once, shown for a while."""

from __future__ import annotations

import threading
from typing import Final

from flexo.events import Event
from flexo.model.queue import JobKey

_SHOWN_S: Final = 120.0


class Refusals:
    """The last refusal. May be used from any thread."""

    def __init__(self, software: str) -> None:
        """`software`: what manages the cluster, for people."""
        self._software = software
        self._lock = threading.Lock()
        self._last = ""
        self._last_at = 0.0

    def note(self, refusal: str, key: JobKey | None, now: float, what: str = "") -> tuple[Event, ...]:
        """The cluster said no, or `what`. What is to be written down: nothing if it said the same before."""
        with self._lock:
            news = refusal != self._last
            self._last, self._last_at = refusal, now
        said = what or f"{self._software} refused it"
        return (Event(now, "trouble", key, f"{said}: {refusal}"),) if news else ()

    def forget(self) -> None:
        """The cluster does as asked again."""
        with self._lock:
            self._last = ""

    def recent(self, now: float) -> str:
        """What it refused a short while ago; "" if nothing."""
        with self._lock:
            return self._last if now - self._last_at < _SHOWN_S else ""
