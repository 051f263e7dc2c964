"""Room kept for one base that has waited for too long, as EASY backfilling does, in numbers of GPUs (Lyra).

Lifka, "The ANL/IBM SP scheduling system" (1995). Flexible workers may use this room meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from flexo_protos.resources import Amount


@dataclass(slots=True)
class Reservation:
    """The instant at which the base will fit, and the number of GPUs that are left beside it then."""

    at: float
    """Infinite: by no estimate will the base ever fit, and nothing is kept for it."""
    spare: Amount

    @classmethod
    def of(cls, gpus: Amount, room: Amount, ends: Iterable[tuple[float, Amount]], now: float) -> Reservation:
        """The reservation of a base that needs `gpus`.

        `room`: GPUs that the base may have now; `ends`: the ends of other jobs, and the GPUs that they give
        back.
        """
        spare, at = room - gpus, now
        for ends_at, given in sorted(ends):
            if spare >= 0:
                break
            spare, at = spare + given, ends_at
        return cls(at if spare >= 0 else math.inf, max(0, spare))

    def allows(self, gpus: Amount, ends_at: float) -> bool:
        """Whether another job may start now with `gpus` of these GPUs and end at `ends_at`, without delaying
        the base."""
        return ends_at <= self.at or gpus <= self.spare

    def started(self, gpus: Amount, ends_at: float) -> None:
        """Record that another job has started with `gpus` and ends at `ends_at`."""
        if ends_at > self.at:
            self.spare -= gpus
