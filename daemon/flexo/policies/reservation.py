"""Room kept for one base that has waited for too long, as EASY backfilling does, in numbers of GPUs (Lyra).

Lifka, "The ANL/IBM SP scheduling system" (1995). Flexible workers may use that room meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from flexo_protos.resources import Amount


@dataclass(slots=True)
class Reservation:
    """When the base will fit, and how many GPUs are left beside it then."""

    at: float
    """Infinite: by no estimate will it ever fit, and nothing is kept for it."""
    spare: Amount

    @classmethod
    def of(cls, gpus: Amount, room: Amount, ends: Iterable[tuple[float, Amount]], now: float) -> Reservation:
        """For `gpus`. `room`: what it may have now; `ends`: when others will end, and what they give."""
        spare, at = room - gpus, now
        for ends_at, given in sorted(ends):
            if spare >= 0:
                break
            spare, at = spare + given, ends_at
        return cls(at if spare >= 0 else math.inf, max(0, spare))

    def allows(self, gpus: Amount, ends_at: float) -> bool:
        """Whether another may start now with so many of these GPUs and end so without delaying it."""
        return ends_at <= self.at or gpus <= self.spare

    def started(self, gpus: Amount, ends_at: float) -> None:
        """Another has started so."""
        if ends_at > self.at:
            self.spare -= gpus
