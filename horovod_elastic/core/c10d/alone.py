"""The channel of a rank that is the only one: it decides by itself, at once, in the thread that asks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from horovod_elastic.core.c10d.channel import Listener
from horovod_elastic.core.c10d.negotiation import Negotiation
from horovod_elastic.core.c10d.words import Blocked, Step, Waits, as_heard


class Alone:
    """A Channel."""

    own_address = ""

    def __init__(self, negotiation: Negotiation, listener: Listener) -> None:
        self._negotiation = negotiation
        self._listener = listener
        self._lock = threading.Lock()
        listener.all_here()

    def steps(self, steps: Sequence[Step]) -> None:
        """See Channel.steps."""
        with self._lock:
            for step in steps:
                if not isinstance(step, Waits | Blocked):
                    self._negotiation.asks(0, step)
            for decision in self._negotiation.decide():
                self._listener.heard(as_heard(decision, 0))

    def put(self, key: str, value: bytes) -> None:
        """See Channel.put."""
        self._listener.entry(key, value)

    def leave(self) -> None:
        """See Channel.leave."""
        self._listener.all_left()

    def hang_up(self, why: str) -> None:
        """See Channel.hang_up: nobody else is there to hear it."""

    def close(self) -> None:
        """See Channel.close."""

    def forget(self) -> None:
        """See Channel.forget."""
