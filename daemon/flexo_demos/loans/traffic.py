"""The inference cluster's traffic in the demo: a day in a few minutes, and a spike in the night.

The functions are pure: seconds since the story began in, servers out. One server of traffic is one Slurm job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexo.loaning.diurnal import Diurnal

_EVENING = 0.2
"""Start of the story, as a part of a day after the peak."""
_MORE_THAN_A_DAY = 1.1


@dataclass(frozen=True, slots=True)
class Traffic:
    """A day of `day_s` seconds and a little more, from the evening on.

    The mean use is Lyra's (diurnal.py), the night is deeper.
    """

    servers: int
    day_s: float
    spike_at: float
    spike_s: float
    spike_servers: int
    """Servers that the spike needs in addition to the day's."""

    @property
    def lasts_s(self) -> float:
        """Duration of the story: until the next evening has begun."""
        return _MORE_THAN_A_DAY * self.day_s

    def needed(self, at: float) -> int:
        """Whole servers that are needed `at` seconds after the beginning."""
        day = Diurnal(
            servers=self.servers,
            swing=1.0,
            peak_at=0.0,
            weekend=1.0,
            noise=0.0,
            bursts_per_day=0.0,
            day_s=self.day_s,
        )
        level = float(day.servers_at(np.array([at + _EVENING * self.day_s]), seed=0)[0])
        spike = self.spike_servers if self.spike_at <= at < self.spike_at + self.spike_s else 0
        return min(self.servers, round(level) + spike)
