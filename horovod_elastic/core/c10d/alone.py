"""The channel of a generation with one rank: each call decides at once, in the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from horovod_elastic.core.c10d.channel import Listener
from horovod_elastic.core.c10d.messages import Blocked, Step, WaitStep, as_heard
from horovod_elastic.core.c10d.negotiation import Negotiation


class Alone:
    """The Channel of a single rank, without connections."""

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
                if not isinstance(step, WaitStep | Blocked):
                    self._negotiation.asks(0, step)
            for decision in self._negotiation.decide():
                self._listener.heard(as_heard(decision, 0))

    def put(self, key: str, value: bytes) -> None:
        """See Channel.put."""
        self._listener.entry(key, value)

    def leave(self) -> None:
        """See Channel.leave."""
        self._listener.all_left()

    def outlive(self) -> None:
        """See Channel.outlive. There is no other rank."""

    def hang_up(self, why: str) -> None:
        """See Channel.hang_up. There is no other rank to tell."""

    def close(self) -> None:
        """See Channel.close."""

    def forget(self) -> None:
        """See Channel.forget."""
