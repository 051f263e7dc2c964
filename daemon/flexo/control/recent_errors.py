"""Recent refusals of the cluster: recorded once, shown for a while."""

from __future__ import annotations

import threading
from typing import Final

from flexo.events import Event
from flexo.model.queue import JobKey

_SHOWN_S: Final = 120.0


class RecentErrors:
    """The last refusal. May be used from any thread."""

    def __init__(self, software: str) -> None:
        """`software`: the name of the software that manages the cluster, for people."""
        self._software = software
        self._lock = threading.Lock()
        self._last = ""
        self._last_at = 0.0

    def note(self, refusal: str, key: JobKey | None, now: float, what: str = "") -> tuple[Event, ...]:
        """Note a refusal of the cluster. `what`: the text before it; "": that the cluster refused.

        Returns the events for the event store: none if the last refusal was the same.
        """
        with self._lock:
            news = refusal != self._last
            self._last, self._last_at = refusal, now
        said = what or f"{self._software} refused it"
        return (Event(now, "trouble", key, f"{said}: {refusal}"),) if news else ()

    def forget(self) -> None:
        """Forget the last refusal: the cluster carries out commands again."""
        with self._lock:
            self._last = ""

    def recent(self, now: float) -> str:
        """The last refusal, if it is recent; "" if there is none."""
        with self._lock:
            return self._last if now - self._last_at < _SHOWN_S else ""
