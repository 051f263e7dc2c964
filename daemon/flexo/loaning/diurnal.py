"""Synthetic demand of an inference cluster: a day, a week, noise and bursts, drawn by a seed.

Little is published about such a load. Lyra's inference cluster (slides, "Observations from the production
environment") follows the day and is used about 40% on average, which is the default of `mean_use`. The depth
of the night, the weekend and the bursts are not published. The other defaults are chosen to look similar, and
each can be set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from flexo.loaning.history import Floats

_THURSDAY: Final = 3
"""The weekday of the first day of the epoch, counted from Monday."""


class BadShape(ValueError):
    """The error for an impossible load; the message names the number and what is allowed."""


@dataclass(frozen=True, slots=True)
class Diurnal:
    """The properties of the load. Shares are parts of `servers` or of the mean; times are in days of `day_s`.

    Raises BadShape.
    """

    servers: int = 100
    """The cluster's size, which demand never exceeds."""
    mean_use: float = 0.40
    """The mean use as a part of the cluster, without bursts. Lyra: about 0.4."""
    swing: float = 0.6
    """Half the distance from the night's lowest to the day's highest, as a part of the mean."""
    peak_at: float = 14 / 24
    """The time of the day at which the load is highest."""
    weekend: float = 0.75
    """The load of Saturday and Sunday, relative to the other days; the change takes seven hours."""
    growth: float = 0.0
    """Growth per week, as a part of the mean: 0.02 is 2% more each week."""
    noise: float = 0.03
    """Standard deviation of the noise, as a part of the mean."""
    noise_lasts: float = 0.5 / 24
    """Time constant of the noise: how long it keeps its direction."""
    bursts_per_day: float = 2.0
    """Mean number of bursts; they come at any time (Poisson)."""
    burst_height: float = 0.25
    """Median height of a burst, as a part of the mean; lognormal with a sigma of 0.5."""
    burst_lasts: float = 0.75 / 24
    """Time constant with which a burst fades; it rises at once."""
    day_s: float = 86_400.0

    def __post_init__(self) -> None:
        limits = {
            "servers": (1, 1e6), "mean_use": (0, 1), "swing": (0, 1), "peak_at": (0, 1), "weekend": (0, 10),
            "growth": (-1, 10), "noise": (0, 10), "noise_lasts": (1e-6, 100), "bursts_per_day": (0, 1000),
            "burst_height": (0, 100), "burst_lasts": (1e-6, 100), "day_s": (1e-3, 1e9),
        }  # fmt: skip
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadShape(f"{name} = {value:g}: it takes {low:g} to {high:g}")

    def servers_at(self, times: Floats, seed: int) -> Floats:
        """Servers needed at `times` (seconds, evenly spaced, ascending), not necessarily whole ones."""
        days = times / self.day_s
        random = np.random.default_rng(seed)
        mean = self.mean_use * self.servers
        level = mean * (1 + self.growth * (days - days[0]) / 7) if len(days) else days
        between = (1 + self.weekend) / 2
        corners = (
            (0, between),
            (0.15, 1),
            (4.85, 1),
            (5.15, self.weekend),
            (6.85, self.weekend),
            (7, between),
        )
        weekend = np.interp((days + _THURSDAY) % 7, *np.array(corners).T)
        shape = 1 + self.swing * np.cos(2 * math.pi * (days - self.peak_at))
        load = level * weekend * shape / self._mean_of_week()
        load = load + mean * self._wavering(days, random) + mean * self._bursts(days, random)
        return np.asarray(np.clip(load, 0.0, self.servers))

    def _mean_of_week(self) -> float:
        return (5 + 2 * self.weekend) / 7

    def _wavering(self, days: Floats, random: np.random.Generator) -> Floats:
        """The noise: an Ornstein-Uhlenbeck process, sampled."""
        shocks = random.standard_normal(len(days))
        keep = math.exp(-(days[1] - days[0]) / self.noise_lasts) if len(days) > 1 else 0.0
        values, value, rest = np.empty(len(days)), 0.0, math.sqrt(1 - keep * keep)
        for at, shock in enumerate(shocks):
            value = keep * value + rest * shock if at else shock
            values[at] = value
        return self.noise * values

    def _bursts(self, days: Floats, random: np.random.Generator) -> Floats:
        total = np.zeros(len(days))
        if not len(days):
            return total
        for begin in _arrivals(days[0] - 5 * self.burst_lasts, days[-1], self.bursts_per_day, random):
            height = self.burst_height * random.lognormal(0.0, 0.5)
            first, end = np.searchsorted(days, (begin, begin + 12 * self.burst_lasts))
            total[first:end] += height * np.exp(-(days[first:end] - begin) / self.burst_lasts)
        return total


def _arrivals(begin: float, end: float, rate: float, random: np.random.Generator) -> Floats:
    number = int(random.poisson(rate * max(0.0, end - begin)))
    return np.sort(random.uniform(begin, end, number))
